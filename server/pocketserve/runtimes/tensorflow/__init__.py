"""SavedModels and Keras models, run by TensorFlow."""

from pocketserve.runtimes.model_format import ModelFormat, Requirement, late

PACKAGES = ("tensorflow",)
INSTALL = "pip install 'pocketserve[tensorflow]'; Termux does not have it: convert the model on a desktop"

FRAMEWORK = Requirement("tensorflow", "Keras and SavedModel models", "tensorflow")

FORMATS = (
    ModelFormat(
        "keras",
        "pocketserve.runtimes.tensorflow.keras",
        suffixes=(".keras", ".h5", ".hdf5"),
        magic=((0, b"\x89HDF\r\n\x1a\n"),),
        zipped=True,
        metadata=late(f"{__name__}.keras_rescaling.read_rescaling"),
        packages=PACKAGES,
        install=INSTALL,
        frameworks=(FRAMEWORK,),
        layers=late(f"{__name__}.layers.open_keras_layers"),
    ),
    ModelFormat(
        "savedmodel",
        "pocketserve.runtimes.tensorflow.savedmodel",
        marker="saved_model.pb",
        by_name=True,
        metadata=late(f"{__name__}.savedmodel_rescaling.read_graph_rescaling"),
        packages=PACKAGES,
        install=INSTALL,
        triton="tensorflow",
    ),
)

// The app as a project for Android Studio. First "make aar" in the clone: it makes the library's Maven repository.
pluginManagement {
    repositories {
        google()
        mavenCentral()
        gradlePluginPortal()
    }
}

dependencyResolutionManagement {
    repositories {
        google()
        mavenCentral()
        maven { url = uri("../../build/bridge/maven") }
    }
}

rootProject.name = "pocketserve-companion"

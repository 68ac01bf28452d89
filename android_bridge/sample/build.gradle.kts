// Says the same as build_apk.py, which builds the released app; a test compares the two.
plugins {
    alias(libs.plugins.android.application)
}

android {
    namespace = "dev.pocketserve.sample"
    compileSdk = 36

    defaultConfig {
        applicationId = "dev.pocketserve.sample"
        minSdk = 23
        targetSdk = 36
        versionCode = 100
        versionName = "0.1.0"
    }

    compileOptions {
        sourceCompatibility = JavaVersion.VERSION_1_8
        targetCompatibility = JavaVersion.VERSION_1_8
    }

    sourceSets.getByName("main") {
        manifest.srcFile("AndroidManifest.xml")
        java.setSrcDirs(listOf("src"))
        res.setSrcDirs(listOf("res"))
        assets.setSrcDirs(listOf("assets"))
    }
}

dependencies {
    implementation(libs.pocketserve.bridge)
    implementation(libs.zxing.core)
}

// Says the same as build_apk.py, which builds the released app; a test compares the two.
plugins {
    id("com.android.application") version "8.13.0"
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
    implementation("dev.pocketserve:pocketserve-bridge:0.1.0")
    implementation("com.google.zxing:core:3.4.1") // build_apk.py takes Debian's package of this version
}

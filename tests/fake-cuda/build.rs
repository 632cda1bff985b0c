//! Names the library inside its file.
//!
//! The loader answers a later request for `libcuda.so` with an object of that
//! name that is loaded already. The file is called `libfakecuda.so`, so that
//! nothing finds it by accident.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux") {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so");
    }
}

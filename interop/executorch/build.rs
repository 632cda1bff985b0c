//! Compiles the shim, and links the released runtime from where
//! `EXECUTORCH_RUNTIME` says it was unpacked.
//!
//! Without the feature `runtime` there is nothing to build.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-env-changed=EXECUTORCH_RUNTIME");
    println!("cargo::rerun-if-changed=cpp");
    runtime()
}

#[cfg(not(feature = "runtime"))]
fn runtime() -> Result<(), Box<dyn Error>> {
    Ok(())
}

#[cfg(feature = "runtime")]
fn runtime() -> Result<(), Box<dyn Error>> {
    use std::path::PathBuf;

    let root = std::env::var_os("EXECUTORCH_RUNTIME").map(PathBuf::from);
    let root = root.filter(|root| root.join("lib/libexecutorch.so").is_file());
    let root = root.ok_or("EXECUTORCH_RUNTIME names no unpacked runtime; run ci/interop.sh")?;
    let include = root.join("include");
    let libraries = root.join("lib");

    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .opt_level(3)
        .define("C10_USING_CUSTOM_GENERATED_MACROS", None)
        .flag("-isystem")
        .flag(&include)
        .flag("-isystem")
        .flag(include.join("executorch/runtime/core/portable_type/c10"))
        .files([
            "cpp/forwarding.cpp",
            "cpp/module.cpp",
            "cpp/original.cpp",
            "cpp/stand_in.cpp",
            "cpp/costs.cpp",
        ])
        .try_compile("interop_executorch")?;

    let libraries = libraries.display();
    // Kernels register themselves when their library is loaded, and nothing names
    // them, so the linker must not drop it.
    for argument in [
        format!("-L{libraries}"),
        format!("-Wl,-rpath,{libraries}"),
        "-Wl,--no-as-needed".to_owned(),
        "-lexecutorch_kernels_optimized".to_owned(),
        "-lexecutorch_threadpool".to_owned(),
        "-lexecutorch".to_owned(),
    ] {
        println!("cargo::rustc-link-arg={argument}");
    }
    Ok(())
}

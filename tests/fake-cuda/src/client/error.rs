//! Why the simulation could not be loaded.

use std::error::Error;
use std::fmt;
use std::path::PathBuf;

/// Why the simulation could not be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InstallError {
    /// The file is in none of these folders.
    NotFound {
        /// The folders.
        tried: Vec<PathBuf>,
    },
    /// A library of the name of a driver is loaded already, so that the
    /// simulation would come too late or stand beside it.
    DriverLoaded {
        /// The name.
        name: &'static str,
    },
    /// The loader refused the file.
    Load {
        /// The file.
        path: PathBuf,
        /// What the loader says.
        message: String,
    },
    /// The file is not the simulation, or that of another version of this crate.
    Mismatch {
        /// The file.
        path: PathBuf,
    },
    /// The loader does not answer for `libcuda.so` with what was loaded.
    NotAnswering {
        /// The file.
        path: PathBuf,
    },
    /// There is no simulation for this system.
    Unsupported,
}

impl fmt::Display for InstallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound { tried } => {
                write!(f, "libfakecuda.so is in none of {tried:?}")
            }
            Self::DriverLoaded { name } => {
                write!(f, "{name} is loaded already, and it is not the simulation")
            }
            Self::Load { path, message } => {
                write!(f, "{} can not be loaded: {message}", path.display())
            }
            Self::Mismatch { path } => {
                write!(
                    f,
                    "{} is not the simulation of this version",
                    path.display()
                )
            }
            Self::NotAnswering { path } => {
                write!(f, "{} does not answer for libcuda.so", path.display())
            }
            Self::Unsupported => f.write_str("there is no simulation for this system"),
        }
    }
}

impl Error for InstallError {}

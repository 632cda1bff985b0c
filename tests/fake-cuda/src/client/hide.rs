//! A copy of the driver that lacks some functions, as an old driver does.
//!
//! The names of exported functions are text in the file. A name that is changed
//! there is not found any more: what is looked up by its hash is compared with
//! the text. The changed name is not found either, for its hash is another.

use std::fs;
use std::path::{Path, PathBuf};
use std::process;

use super::InstallError;

/// A file that is deleted when it is not needed any more.
#[derive(Debug)]
pub(super) struct Temporary(PathBuf);

impl Temporary {
    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // What is loaded of it stays; a file that stays too does no harm.
        let _ = fs::remove_file(&self.0);
    }
}

/// Copies a library to a temporary file in which functions are not found.
pub(super) fn copy_without(path: &Path, hidden: &[&str]) -> Result<Temporary, InstallError> {
    let refused = |message: String| InstallError::Load {
        path: path.to_owned(),
        message,
    };
    let mut bytes = fs::read(path).map_err(|error| refused(error.to_string()))?;
    for name in hidden {
        if !name.starts_with("cu") || hide(&mut bytes, name) == 0 {
            return Err(refused(format!("it has no function {name} to hide")));
        }
    }
    let copy = std::env::temp_dir().join(format!("libfakecuda-{}.so", process::id()));
    let copy = Temporary(copy);
    fs::write(copy.path(), &bytes).map_err(|error| refused(error.to_string()))?;
    Ok(copy)
}

/// Changes every text that is exactly this name, and says how many there were.
fn hide(bytes: &mut [u8], name: &str) -> usize {
    let text = [b"\0", name.as_bytes(), b"\0"].concat();
    let found = bytes.windows(text.len()).enumerate();
    let found = found.filter(|(_, window)| *window == text);
    let starts: Vec<usize> = found.map(|(start, _)| start).collect();
    for start in &starts {
        if let Some(first) = bytes.get_mut(start + 1) {
            *first = b'#';
        }
    }
    starts.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_name_is_hidden() {
        let mut bytes = *b"\0cuInit\0cuInit2\0xcuInit\0cuInit\0";

        assert_eq!(hide(&mut bytes, "cuInit"), 2);
        assert_eq!(&bytes, b"\0#uInit\0cuInit2\0xcuInit\0#uInit\0");
    }
}

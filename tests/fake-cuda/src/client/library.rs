//! Finding and loading `libfakecuda.so`.

use std::env;
use std::path::PathBuf;

use super::InstallError;

/// The file, as cargo names it.
const FILE: &str = "libfakecuda.so";

/// The folders in which the file is looked for, the likeliest first.
fn folders() -> Vec<PathBuf> {
    let mut folders = Vec::new();
    if let Some(folder) = env::var_os("FAKECUDA_DIR") {
        folders.push(PathBuf::from(folder));
    }
    if let Ok(program) = env::current_exe() {
        // `target/debug/deps/test`, `target/debug/examples/example` or
        // `target/debug/program`.
        for folder in program.ancestors().skip(1).take(3) {
            folders.push(folder.to_owned());
            folders.push(folder.join("deps"));
        }
    }
    // Doctests run elsewhere, and cargo names its folders here.
    if let Some(paths) = env::var_os("LD_LIBRARY_PATH") {
        folders.extend(env::split_paths(&paths));
    }
    folders
}

/// The file, or the folders in which it is not.
fn find() -> Result<PathBuf, InstallError> {
    let tried = folders();
    let found = tried
        .iter()
        .map(|folder| folder.join(FILE))
        .find(|path| path.is_file());
    found.ok_or(InstallError::NotFound { tried })
}

#[cfg(target_os = "linux")]
pub(super) use linux::Library;

#[cfg(target_os = "linux")]
mod linux {
    #![allow(unsafe_code, reason = "the loader is a C interface")]

    use std::ffi::{CStr, CString, c_void};
    use std::mem::transmute;
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;

    use super::super::{InstallError, hide};

    /// The version of the commands that this copy speaks.
    const VERSION: u32 = 1;

    type Sink = unsafe extern "C" fn(data: *mut c_void, text: *const u8, len: usize);
    type Command = unsafe extern "C" fn(*const u8, usize, Sink, *mut c_void) -> i32;
    type Read = unsafe extern "C" fn(u64, *mut u8, usize) -> i32;

    /// The loaded copy of the driver, which is never unloaded.
    #[derive(Clone, Copy, Debug)]
    pub(in super::super) struct Library {
        command: Command,
        read: Read,
    }

    impl Library {
        /// Loads the driver so that a later request for `libcuda.so` gets it,
        /// without some of its functions.
        pub(in super::super) fn load(hidden: &[&str]) -> Result<Self, InstallError> {
            for (text, name) in [
                ("libcuda.so", c"libcuda.so"),
                ("libcuda.so.1", c"libcuda.so.1"),
            ] {
                if !loaded(name).is_null() {
                    return Err(InstallError::DriverLoaded { name: text });
                }
            }
            let path = super::find()?;
            let handle = if hidden.is_empty() {
                open(&path)?
            } else {
                let copy = hide::copy_without(&path, hidden)?;
                let handle = open(copy.path());
                drop(copy);
                handle?
            };
            let mismatch = || InstallError::Mismatch { path: path.clone() };
            let version = symbol(handle, c"fakecuda_version").ok_or_else(mismatch)?;
            // SAFETY: the symbol of this name is a function of this type in
            // every version of this crate.
            let version: extern "C" fn() -> u32 = unsafe { transmute(version) };
            if version() != VERSION {
                return Err(mismatch());
            }
            let command = symbol(handle, c"fakecuda_command").ok_or_else(mismatch)?;
            let read = symbol(handle, c"fakecuda_read").ok_or_else(mismatch)?;
            if loaded(c"libcuda.so") != handle {
                return Err(InstallError::NotAnswering { path });
            }
            Ok(Self {
                // SAFETY: it is a function of this type in this version.
                command: unsafe { transmute::<*mut c_void, Command>(command) },
                // SAFETY: as above.
                read: unsafe { transmute::<*mut c_void, Read>(read) },
            })
        }

        /// Does a command.
        pub(in super::super) fn command(&self, text: &str) -> Result<String, String> {
            unsafe extern "C" fn sink(data: *mut c_void, text: *const u8, len: usize) {
                // SAFETY: `data` is the `Vec` below, which waits for the call.
                let answer = unsafe { &mut *data.cast::<Vec<u8>>() };
                // SAFETY: the driver passes that many bytes.
                answer.extend_from_slice(unsafe { std::slice::from_raw_parts(text, len) });
            }
            let mut answer = Vec::<u8>::new();
            let data = (&raw mut answer).cast();
            // SAFETY: the text is there for its length, and `sink` takes text
            // with `answer`.
            let code = unsafe { (self.command)(text.as_ptr(), text.len(), sink, data) };
            let answer = String::from_utf8_lossy(&answer).into_owned();
            if code == 0 { Ok(answer) } else { Err(answer) }
        }

        /// Reads device memory.
        pub(in super::super) fn read(&self, addr: u64, out: &mut [u8]) -> bool {
            // SAFETY: `out` has room for its length.
            unsafe { (self.read)(addr, out.as_mut_ptr(), out.len()) == 0 }
        }
    }

    /// The handle of a library that is loaded under this name, or null.
    fn loaded(name: &CStr) -> *mut c_void {
        // SAFETY: the name ends with a zero; nothing is loaded, so that no
        // foreign code runs.
        unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) }
    }

    fn open(path: &Path) -> Result<*mut c_void, InstallError> {
        let refused = |message: String| InstallError::Load {
            path: path.to_owned(),
            message,
        };
        let name = CString::new(path.as_os_str().as_bytes());
        let name = name.map_err(|error| refused(error.to_string()))?;
        // SAFETY: the name ends with a zero; the file is built from this crate,
        // whose start does nothing.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if !handle.is_null() {
            return Ok(handle);
        }
        // SAFETY: the last call to the loader failed on this thread.
        let message = unsafe { libc::dlerror() };
        if message.is_null() {
            return Err(refused(String::from("no reason given")));
        }
        // SAFETY: it is not null, so it is text of the loader, valid until the
        // next call to it.
        let message = unsafe { CStr::from_ptr(message) };
        Err(refused(message.to_string_lossy().into_owned()))
    }

    fn symbol(handle: *mut c_void, name: &CStr) -> Option<*mut c_void> {
        // SAFETY: the handle is of a loaded library, and the name ends with a
        // zero.
        let symbol = unsafe { libc::dlsym(handle, name.as_ptr()) };
        (!symbol.is_null()).then_some(symbol)
    }
}

#[cfg(not(target_os = "linux"))]
#[derive(Clone, Copy, Debug)]
pub(super) enum Library {}

#[cfg(not(target_os = "linux"))]
impl Library {
    pub(super) fn load(_: &[&str]) -> Result<Self, InstallError> {
        let _ = find;
        Err(InstallError::Unsupported)
    }

    pub(super) fn command(&self, _: &str) -> Result<String, String> {
        match *self {}
    }

    pub(super) fn read(&self, _: u64, _: &mut [u8]) -> bool {
        match *self {}
    }
}

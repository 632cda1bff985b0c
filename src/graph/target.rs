//! The device that a delegate names in its settings.
//!
//! Rank 4. Part of `graph`.

use crate::device::{Device, ParseDeviceError};

/// The device that a text such as `"cuda:1"` or `" CUDA "` names.
///
/// Space around it and the case of letters do not matter; the index is 0 if there
/// is none.
///
/// # Errors
///
/// - [`ParseDeviceError`]: the type is not known, or the index is no number from 0
///   to 65535. There is no index of -1.
///
/// # Examples
///
/// ```
/// use device_memory::graph::parse_target_device;
///
/// assert_eq!(parse_target_device(" CUDA:1 ")?, "cuda:1".parse()?);
/// assert!(parse_target_device("cuda:-1").is_err());
/// # Ok::<(), device_memory::ParseDeviceError>(())
/// ```
pub fn parse_target_device(text: &str) -> Result<Device, ParseDeviceError> {
    text.trim().to_ascii_lowercase().parse()
}

/// The device that the settings of a delegate name, under the key
/// `target_device`, if they do; the first such key counts.
///
/// # Errors
///
/// As [`parse_target_device`]; bytes that are not UTF-8 are no device.
///
/// # Examples
///
/// ```
/// use device_memory::graph::target_device;
///
/// let settings = [("max_value", &b"4"[..]), ("target_device", b"cuda:1")];
///
/// assert_eq!(target_device(settings)?, Some("cuda:1".parse()?));
/// assert_eq!(target_device([("max_value", &b"4"[..])])?, None);
/// # Ok::<(), device_memory::ParseDeviceError>(())
/// ```
pub fn target_device<'a>(
    settings: impl IntoIterator<Item = (&'a str, &'a [u8])>,
) -> Result<Option<Device>, ParseDeviceError> {
    let mut settings = settings.into_iter();
    let Some((_, value)) = settings.find(|(key, _)| *key == "target_device") else {
        return Ok(None);
    };
    parse_target_device(&String::from_utf8_lossy(value)).map(Some)
}

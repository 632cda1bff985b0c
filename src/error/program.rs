//! The report of a malformed ExecuTorch program.
//!
//! Rank 1. Part of `error`.

use std::fmt;

/// Where a program is malformed, and how.
///
/// # Examples
///
/// ```
/// use device_memory::InvalidProgram;
///
/// let mut fault = InvalidProgram::new("allocation_info", "memory id 0 is reserved");
/// fault.method = Some("forward".to_owned());
/// fault.value = Some(3);
///
/// assert_eq!(
///     fault.to_string(),
///     "invalid program: method \"forward\", value 3, allocation_info: memory id 0 is reserved"
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct InvalidProgram {
    /// The method, where one is concerned.
    pub method: Option<String>,
    /// The value of the method, where one is concerned.
    pub value: Option<u32>,
    /// The field or the structure of the file.
    pub field: &'static str,
    /// What is wrong with it, with the numbers.
    pub reason: String,
}

impl InvalidProgram {
    /// A fault of `field` that concerns no method.
    #[must_use]
    pub fn new(field: &'static str, reason: impl Into<String>) -> Self {
        Self {
            method: None,
            value: None,
            field,
            reason: reason.into(),
        }
    }
}

impl fmt::Display for InvalidProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("invalid program: ")?;
        if let Some(method) = &self.method {
            write!(f, "method {method:?}, ")?;
        }
        if let Some(value) = self.value {
            write!(f, "value {value}, ")?;
        }
        write!(f, "{}: {}", self.field, self.reason)
    }
}

impl std::error::Error for InvalidProgram {}

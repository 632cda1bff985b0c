//! Faults of a program while they travel from the place where they are found.
//!
//! Rank 4. Part of `pte`.
//!
//! A fault starts with a field and a reason; the loops that know the method and
//! the value add them. Nothing here is on the path of a well-formed program.

use std::fmt;

use crate::error::{ErrorKind, InvalidProgram};

/// The result of reading something out of a program.
pub(super) type Fallible<T> = Result<T, Fault>;

/// What is wrong, boxed: results stay small where programs are well formed.
#[derive(Debug)]
pub(super) struct Fault(Box<InvalidProgram>);

impl Fault {
    /// A fault of `field`.
    #[cold]
    #[inline(never)]
    pub(super) fn new(field: &'static str, reason: fmt::Arguments<'_>) -> Self {
        Self(Box::new(InvalidProgram::new(field, reason.to_string())))
    }

    /// The same fault, said of value `value`.
    #[cold]
    #[inline(never)]
    pub(super) fn of_value(mut self, value: u32) -> Self {
        self.0.value = Some(value);
        self
    }

    /// The same fault, said of method `method`.
    #[cold]
    #[inline(never)]
    pub(super) fn of_method(mut self, method: &str) -> Self {
        self.0.method = Some(method.to_owned());
        self
    }

    /// The same fault, said of the `index`-th `what`.
    #[cold]
    #[inline(never)]
    pub(super) fn at(mut self, what: &str, index: usize) -> Self {
        self.0.reason = format!("{what} {index}: {}", self.0.reason);
        self
    }
}

impl Fault {
    /// The same fault, said of the `index`-th method if it names none.
    #[cold]
    #[inline(never)]
    pub(super) fn at_method(self, index: usize) -> Self {
        match self.0.method {
            Some(_) => self,
            None => self.at("method", index),
        }
    }
}

impl From<Fault> for ErrorKind {
    #[cold]
    fn from(fault: Fault) -> Self {
        Self::InvalidProgram(*fault.0)
    }
}

/// The work that reading a program may still cost, in bytes looked at.
///
/// Tables may be shared, so a small file can describe a huge tree. Exporters
/// share little: a tree that is many times larger than its file is refused.
#[derive(Debug)]
pub(super) struct Budget {
    left: usize,
    size: usize,
}

impl Budget {
    /// How many times its own size a program may unfold to.
    const FACTOR: usize = 8;

    /// The budget of a program of `size` bytes.
    pub(super) fn new(size: usize) -> Self {
        Self {
            left: size.saturating_mul(Self::FACTOR),
            size,
        }
    }

    /// Takes `bytes` off.
    #[inline]
    pub(super) fn charge(&mut self, field: &'static str, bytes: usize) -> Fallible<()> {
        match self.left.checked_sub(bytes) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => Err(Fault::new(
                field,
                format_args!(
                    "shared tables unfold to more than {} times the {} bytes of the program",
                    Self::FACTOR,
                    self.size
                ),
            )),
        }
    }
}

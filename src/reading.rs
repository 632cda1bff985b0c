//! Host memory filled from a reader.
//!
//! Rank 2. Imports the words: `device`, `error`.

use std::io::{self, Read};

use crate::device::Device;
use crate::error::{Error, ErrorKind, Operation, Result};

const OPERATION: Operation = Operation::CopyHostToDevice;

/// Reads exactly as many bytes as `piece` is long, of `total` for `device` of
/// which `before` were read.
pub(crate) fn fill(
    piece: &mut [u8],
    source: &mut impl Read,
    device: Device,
    total: usize,
    before: usize,
) -> Result<()> {
    let mut filled = 0_usize;
    while let Some(rest) = piece.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        let room = rest.len();
        match source.read(rest) {
            Ok(0) => {
                return Err(ErrorKind::LengthMismatch {
                    device,
                    expected: total,
                    found: before.saturating_add(filled),
                }
                .into());
            }
            Ok(len) if len <= room => filled = filled.saturating_add(len),
            Ok(_) => {
                let lie = io::Error::other("the reader says that it read more than there is room");
                return Err(Error::backend(device, OPERATION, lie));
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Error::backend(device, OPERATION, error)),
        }
    }
    Ok(())
}

//! Text inside other formats.
//!
//! Rank 4. Part of `adaptor::recorder`. Imports nothing.

use std::fmt;

/// Text as it stands between the quotes of a JSON string.
#[derive(Clone, Copy, Debug)]
pub(super) struct Json<'a>(pub(super) &'a str);

impl fmt::Display for Json<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '"' => f.write_str("\\\"")?,
                '\\' => f.write_str("\\\\")?,
                c if u32::from(c) < 0x20 => write!(f, "\\u{:04x}", u32::from(c))?,
                c => write!(f, "{c}")?,
            }
        }
        Ok(())
    }
}

/// Text as it stands in an element or an attribute of HTML. Controls that no
/// document may have are shown as the replacement character.
#[derive(Clone, Copy, Debug)]
pub(super) struct Html<'a>(pub(super) &'a str);

impl fmt::Display for Html<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                c if c.is_control() => f.write_str("\u{fffd}")?,
                c => write!(f, "{c}")?,
            }
        }
        Ok(())
    }
}

/// Text as it stands in one line of a report: controls are shown as the
/// replacement character.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line<'a>(pub(super) &'a str);

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0.replace(char::is_control, "\u{fffd}"))
    }
}

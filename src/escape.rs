//! Text inside other text.
//!
//! Rank 0. Imports nothing from this crate.

use std::fmt::{self, Write};

/// Text as it stands in an element or an attribute of HTML or SVG. Controls that no
/// document may have are shown as the replacement character.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Markup<'a>(pub(crate) &'a str);

impl fmt::Display for Markup<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars() {
            match character {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                '\n' | '\t' => f.write_char(character)?,
                control if control.is_control() => f.write_char('\u{fffd}')?,
                '\u{fffe}' | '\u{ffff}' => f.write_char('\u{fffd}')?,
                other => f.write_char(other)?,
            }
        }
        Ok(())
    }
}

/// Text as it stands between the quotes of a JSON string.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Json<'a>(pub(crate) &'a str);

impl fmt::Display for Json<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars() {
            match character {
                '"' => f.write_str("\\\"")?,
                '\\' => f.write_str("\\\\")?,
                '\n' => f.write_str("\\n")?,
                control if control < ' ' => write!(f, "\\u{:04x}", u32::from(control))?,
                // A script inside HTML would end here.
                '<' => f.write_str("\\u003c")?,
                other => f.write_char(other)?,
            }
        }
        Ok(())
    }
}

/// Text as it stands in one line: controls are shown as the replacement character.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line<'a>(pub(crate) &'a str);

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0.replace(char::is_control, "\u{fffd}"))
    }
}

#[cfg(test)]
mod tests {
    use super::{Json, Line, Markup};

    #[test]
    fn what_has_a_meaning_in_markup_is_written_otherwise() {
        let text = "a<b> & \"c\" 'd'\u{1}";

        let escaped = Markup(text).to_string();

        assert_eq!(
            escaped,
            "a&lt;b&gt; &amp; &quot;c&quot; &#39;d&#39;\u{fffd}"
        );
    }

    #[test]
    fn every_text_is_read_back_from_json() {
        let text: String = (0..0x300).filter_map(char::from_u32).collect();

        let escaped = format!("\"{}\"", Json(&text));

        let back: String = serde_json::from_str(&escaped).unwrap();
        assert_eq!(back, text);
        assert!(!escaped.contains("</"));
    }

    #[test]
    fn a_line_is_one_line_and_can_be_padded() {
        assert_eq!(
            format!("{:>6}|", Line("a\nb\u{7f}")),
            "  a\u{fffd}b\u{fffd}|"
        );
    }
}

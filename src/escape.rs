//! Text inside other text.
//!
//! Rank 0. Imports nothing from this crate.

use std::fmt::{self, Write};

/// A text as it stands between the tags of XML and HTML, or in their quotes.
pub(crate) struct Xml<'a>(pub(crate) &'a str);

impl fmt::Display for Xml<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars() {
            match character {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                // XML has no way to write these.
                '\0'..='\x08' | '\x0b' | '\x0c' | '\x0e'..='\x1f' | '\u{fffe}' | '\u{ffff}' => {
                    f.write_char('\u{fffd}')?;
                }
                other => f.write_char(other)?,
            }
        }
        Ok(())
    }
}

/// A text as a string of JSON, with its quotes.
pub(crate) struct Json<'a>(pub(crate) &'a str);

impl fmt::Display for Json<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
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
        f.write_char('"')
    }
}

#[cfg(test)]
mod tests {
    use super::{Json, Xml};

    #[test]
    fn what_has_a_meaning_in_xml_is_written_otherwise() {
        let text = "a<b> & \"c\" 'd'\u{1}";

        let escaped = Xml(text).to_string();

        assert_eq!(
            escaped,
            "a&lt;b&gt; &amp; &quot;c&quot; &#39;d&#39;\u{fffd}"
        );
    }

    #[test]
    fn every_text_is_read_back_from_json() {
        let text: String = (0..0x300).filter_map(char::from_u32).collect();

        let escaped = Json(&text).to_string();

        let back: String = serde_json::from_str(&escaped).unwrap();
        assert_eq!(back, text);
        assert!(!escaped.contains("</"));
    }
}

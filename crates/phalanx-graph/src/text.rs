//! Safe printing of text from users and files.
//!
//! A name may contain escape sequences, line breaks or bidirectional marks. Printed text shows such characters as
//! escapes; ordinary letters of any script are unchanged.

use std::borrow::Cow;
use std::fmt::{self, Display, Write};

/// Maximum number of characters of a quoted value.
pub const MAX_QUOTED: usize = 80;
/// Maximum number of characters of one part of a message, such as a path or a list.
pub const MAX_PART: usize = 2000;

/// Whether a character affects a terminal or is invisible: control characters, line separators, bidirectional
/// marks, zero-width characters.
pub fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{ad}'
                | '\u{34f}'
                | '\u{61c}'
                | '\u{115f}'..='\u{1160}'
                | '\u{17b4}'..='\u{17b5}'
                | '\u{180e}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{3164}'
                | '\u{feff}'
                | '\u{ffa0}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{13430}'..='\u{1343f}'
                | '\u{1bca0}'..='\u{1bca3}'
                | '\u{1d173}'..='\u{1d17a}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

/// Escapes hidden characters: `\n`, `\u{202e}`. Escapes contain no hidden characters, so escaping is idempotent.
///
/// ```
/// use phalanx_graph::text::escape;
///
/// assert_eq!(escape("naïve 猫 🐈"), "naïve 猫 🐈");
/// assert_eq!(escape("a\n\u{1b}[2J\u{202e}b"), r"a\n\u{1b}[2J\u{202e}b");
/// ```
pub fn escape(text: &str) -> Cow<'_, str> {
    if !text.contains(is_hidden) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match is_hidden(c) {
            true => out.extend(c.escape_default()),
            false => out.push(c),
        }
    }
    Cow::Owned(out)
}

/// Escapes hidden characters by JSON escapes, which keeps the value the same.
pub fn escape_json(json: &str) -> Cow<'_, str> {
    if !json.contains(is_hidden) {
        return Cow::Borrowed(json);
    }
    let mut out = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        if !is_hidden(c) {
            out.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            // Writing to a string cannot fail.
            let _ = write!(out, "\\u{unit:04x}");
        }
    }
    Cow::Owned(out)
}

/// Truncates a text to `max_chars` characters and appends its size if it was longer.
///
/// ```
/// use phalanx_graph::text::truncate;
///
/// assert_eq!(truncate("short", 10), "short");
/// assert_eq!(truncate(&"x".repeat(5000), 3), "xxx… (5000 bytes)");
/// ```
pub fn truncate(text: &str, max_chars: usize) -> Cow<'_, str> {
    match text.char_indices().nth(max_chars) {
        Some((end, _)) => Cow::Owned(format!("{}… ({} bytes)", &text[..end], text.len())),
        None => Cow::Borrowed(text),
    }
}

/// Truncates a quoted value to [`MAX_QUOTED`] characters.
pub fn brief(text: &str) -> Cow<'_, str> {
    truncate(text, MAX_QUOTED)
}

/// Displays a value with its hidden characters escaped.
pub fn shown<T: Display>(value: T) -> Shown<T> {
    Shown { value, max_chars: usize::MAX }
}

/// Like [`shown`], truncated to [`MAX_PART`] characters: for a part of a message.
pub fn part<T: Display>(value: T) -> Shown<T> {
    Shown { value, max_chars: MAX_PART }
}

/// The result of [`shown`] and [`part`].
#[derive(Clone, Copy, Debug)]
pub struct Shown<T> {
    value: T,
    max_chars: usize,
}

impl<T: Display> Display for Shown<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.value.to_string();
        f.pad(&escape(&truncate(&text, self.max_chars)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_characters_are_escaped_once() {
        for (text, expected) in [
            ("plain", "plain"),
            ("\u{1b}[31mred\u{7}", r"\u{1b}[31mred\u{7}"),
            ("a\r\nb\tc", r"a\r\nb\tc"),
            ("\u{7f}\u{80}\u{9b}2J\u{9f}", r"\u{7f}\u{80}\u{9b}2J\u{9f}"),
            ("\u{202e}cba\u{202c}", r"\u{202e}cba\u{202c}"),
            ("\u{2066}\u{2069}\u{200e}\u{200f}\u{61c}", r"\u{2066}\u{2069}\u{200e}\u{200f}\u{61c}"),
            ("a\u{200b}b\u{feff}\u{2028}\u{ad}", r"a\u{200b}b\u{feff}\u{2028}\u{ad}"),
            ("tag\u{e0041}", r"tag\u{e0041}"),
            // Combining accents, right-to-left scripts, wide characters, emoji.
            (
                "e\u{301} ß שלום 猫 か\u{3099} 🐈 ☂\u{fe0f}",
                "e\u{301} ß שלום 猫 か\u{3099} 🐈 ☂\u{fe0f}",
            ),
        ] {
            assert_eq!(escape(text), expected);
            assert_eq!(escape(&escape(text)), expected);
            assert_eq!(shown(text).to_string(), expected);
        }
        assert_eq!(format!("{:<6}|{:>4}", shown("a\n"), shown("b")), r"a\n   |   b");
    }

    #[test]
    fn json_means_the_same_with_escapes() {
        assert_eq!(escape_json("{\"a\": \"\u{7f}\u{202e}é\"}"), r#"{"a": "\u007f\u202eé"}"#);
        assert_eq!(escape_json("\"\u{e0041}\""), r#""\udb40\udc41""#);
    }

    #[test]
    fn long_values_are_truncated_with_their_size() {
        assert_eq!(brief(&"é".repeat(80)), "é".repeat(80));
        assert_eq!(brief(&"é".repeat(81)), format!("{}… (162 bytes)", "é".repeat(80)));
        let all = part("\n".repeat(50_000_000)).to_string();
        assert_eq!(all.len(), 2 * MAX_PART + "… (50000000 bytes)".len());
    }
}

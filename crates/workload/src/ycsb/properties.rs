//! Parses Java property files, the format of YCSB's workloads.
//!
//! Properties have the form `key=value`, `key: value` or `key value`. `#` and `!` begin comment lines. A
//! line that ends in an odd number of backslashes continues in the next one, whose leading blanks are
//! dropped. The escapes `\n`, `\t`, `\r`, `\f`, `\uXXXX` and escaped separators are supported. The last
//! value of a repeated key wins, as in Java.

/// One property and its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Property {
    /// The key, unescaped.
    pub key: String,
    /// The value, unescaped. Trailing blanks are dropped, unlike in Java, since no YCSB property needs
    /// them.
    pub value: String,
    /// Line of the file, from 1.
    pub line: usize,
}

/// An invalid line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct PropertyError {
    /// Line of the file, from 1.
    pub line: usize,
    /// The defect of the line.
    pub reason: &'static str,
}

/// Splits a file into its properties, in the order of the file.
///
/// # Errors
/// An invalid `\u` escape, or a line without a key.
pub fn parse_properties(text: &str) -> Result<Vec<Property>, PropertyError> {
    let mut properties = Vec::new();
    let mut lines = text.split('\n').map(|line| line.strip_suffix('\r').unwrap_or(line)).enumerate();
    while let Some((index, first)) = lines.next() {
        let line = index + 1;
        let start = first.trim_start_matches(is_blank);
        if start.is_empty() || start.starts_with(['#', '!']) {
            continue;
        }
        let mut logical = start.to_owned();
        while ends_open(&logical) {
            logical.pop();
            match lines.next() {
                Some((_, next)) => logical.push_str(next.trim_start_matches(is_blank)),
                None => break,
            }
        }
        properties.push(split(&logical, line)?);
    }
    Ok(properties)
}

fn is_blank(character: char) -> bool {
    matches!(character, ' ' | '\t' | '\x0c')
}

fn ends_open(line: &str) -> bool {
    line.bytes().rev().take_while(|byte| *byte == b'\\').count() % 2 == 1
}

fn split(logical: &str, line: usize) -> Result<Property, PropertyError> {
    let mut escaped = false;
    let end = logical
        .char_indices()
        .find(|(_, character)| {
            let ends = !escaped && (is_blank(*character) || matches!(character, '=' | ':'));
            escaped = !escaped && *character == '\\';
            ends
        })
        .map_or(logical.len(), |(index, _)| index);
    let (key, rest) = logical.split_at(end);
    let rest = rest.trim_start_matches(is_blank);
    let value = rest.strip_prefix(['=', ':']).unwrap_or(rest).trim_matches(is_blank);
    if key.is_empty() {
        return Err(PropertyError { line, reason: "there is no key before the separator; write key=value" });
    }
    Ok(Property { key: unescape(key, line)?, value: unescape(value, line)?, line })
}

fn unescape(text: &str, line: usize) -> Result<String, PropertyError> {
    let mut plain = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        if character != '\\' {
            plain.push(character);
            continue;
        }
        match characters.next() {
            Some('n') => plain.push('\n'),
            Some('t') => plain.push('\t'),
            Some('r') => plain.push('\r'),
            Some('f') => plain.push('\x0c'),
            Some('u') => {
                let digits: String = characters.by_ref().take(4).collect();
                let code = (digits.len() == 4).then(|| u32::from_str_radix(&digits, 16).ok()).flatten();
                plain.push(code.and_then(char::from_u32).ok_or(PropertyError {
                    line,
                    reason: "\\u must be followed by four hexadecimal digits of a character",
                })?);
            }
            Some(other) => plain.push(other),
            None => {}
        }
    }
    Ok(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(text: &str) -> Vec<(String, String, usize)> {
        parse_properties(text)
            .expect("valid")
            .into_iter()
            .map(|property| (property.key, property.value, property.line))
            .collect()
    }

    fn one(text: &str) -> (String, String) {
        let mut all = pairs(text);
        assert_eq!(all.len(), 1, "{text:?}");
        let (key, value, _) = all.remove(0);
        (key, value)
    }

    #[test]
    fn separators_and_blanks() {
        for text in ["a=b", "a:b", "a b", "  a = b  ", "a\t:\tb", "a =b\r\n", "\x0ca   b"] {
            assert_eq!(one(text), ("a".into(), "b".into()), "{text:?}");
        }
        assert_eq!(one("a="), ("a".into(), String::new()));
        assert_eq!(one("a"), ("a".into(), String::new()));
        assert_eq!(one("a=b=c"), ("a".into(), "b=c".into()));
        assert_eq!(one("a = :b"), ("a".into(), ":b".into()));
    }

    #[test]
    fn comments_blank_lines_and_line_numbers() {
        let text = "# head\n\n! other\nrecordcount=10\n   # inner\noperationcount=5\n";
        assert_eq!(
            pairs(text),
            [("recordcount".into(), "10".into(), 4), ("operationcount".into(), "5".into(), 6)]
        );
    }

    #[test]
    fn continuation_lines() {
        let text = "a=one,\\\n    two,\\\n\tthree\nb=2\n";
        assert_eq!(pairs(text), [("a".into(), "one,two,three".into(), 1), ("b".into(), "2".into(), 4)]);
        assert_eq!(one("a=b\\"), ("a".into(), "b".into()));
        assert_eq!(pairs("a=b\\\\\nc=d").len(), 2, "an escaped backslash does not continue");
        assert_eq!(pairs("# comment \\\na=b"), [("a".into(), "b".into(), 2)], "a comment does not continue");
        assert_eq!(one("a=b\\\n# c"), ("a".into(), "b# c".into()));
    }

    #[test]
    fn escapes() {
        assert_eq!(one(r"a\=b=c\td\u0041\\"), ("a=b".into(), "c\tdA\\".into()));
        assert_eq!(one(r"a\ b=c\q"), ("a b".into(), "cq".into()));
        for text in [r"a=\u12", r"a=\uzzzz", r"a=\ud800"] {
            assert_eq!(parse_properties(&format!("\n{text}")).expect_err(text).line, 2);
        }
    }

    #[test]
    fn a_line_without_key_is_an_error() {
        assert_eq!(parse_properties("a=b\n=c").expect_err("no key").line, 2);
    }

    proptest::proptest! {
        #[test]
        fn no_text_panics(text in "\\PC*|[a=:#!\\\\u\n\r \t0-9]*") {
            let lines = text.split('\n').count();
            if let Ok(properties) = parse_properties(&text) {
                for property in properties {
                    proptest::prop_assert!(property.line >= 1 && property.line <= lines);
                }
            }
        }
    }
}

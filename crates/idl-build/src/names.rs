//! Names and comments of generated items.

use pilota_build::rir::Method;
use pilota_build::{Context, IdentName};

/// Returns a function's name as a part of a type's name.
pub(crate) fn upper_camel(cx: &Context, method: &Method) -> String {
    let name = cx.rust_name(method.def_id);
    // A name chosen by an IDL annotation stays unchanged.
    if cx.cache.names.contains_key(&method.def_id) {
        name.0.to_string()
    } else {
        name.0.upper_camel_ident().to_string()
    }
}

/// Converts `KvStore` to `KV_STORE`.
pub(crate) fn upper_snake(name: &str) -> String {
    name.const_ident().to_string()
}

/// Converts IDL comments to doc attributes; uses `otherwise` if there are no comments.
pub(crate) fn doc(comments: &str, otherwise: &str) -> String {
    let text = text(comments);
    let text = if text.is_empty() { otherwise.to_owned() } else { text };
    text.lines().map(|line| format!("#[doc = {:?}]\n", format!(" {line}").trim_end())).collect()
}

/// Returns the text of comments without comment markers.
pub(crate) fn text(comments: &str) -> String {
    let mut lines = Vec::new();
    let mut block = false;
    for line in comments.lines() {
        let mut line = line.trim();
        if !block {
            if let Some(rest) = line.strip_prefix("/*") {
                block = true;
                line = rest.trim_start_matches(['*', '!']);
            } else {
                line = line.trim_start_matches('/').trim_start_matches('!');
            }
        } else if !line.starts_with("*/") {
            line = line.strip_prefix('*').unwrap_or(line);
        }
        if block && let Some(rest) = line.strip_suffix("*/") {
            block = false;
            line = rest.trim_end_matches('*');
        }
        lines.push(line.strip_prefix(' ').unwrap_or(line).trim_end());
    }
    let lines = lines.join("\n");
    // Code in an IDL comment is not Rust, and brackets in it are not links.
    lines.trim_matches('\n').trim_end().replace('[', "\\[").replace(']', "\\]")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_of_all_kinds_become_text() {
        assert_eq!(text("/// One."), "One.");
        assert_eq!(text("// One.\n\n// Two."), "One.\n\nTwo.");
        assert_eq!(text("/** One. */"), "One.");
        assert_eq!(text("/**\n * One.\n *\n *   Two [x].\n */"), "One.\n\n  Two \\[x\\].");
        assert_eq!(text("/* a */\n\n// b"), "a\n\nb");
        assert_eq!(text(""), "");
    }
}

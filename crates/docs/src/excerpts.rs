//! Blocks of code in pages are excerpts of files that are compiled.

/// Whether the code occurs in the source as whole, contiguous lines, all indented alike in the source.
#[must_use]
pub fn is_excerpt(code: &str, source: &str) -> bool {
    let lines: Vec<&str> = code.trim_end().lines().collect();
    let source: Vec<&str> = source.lines().collect();
    let Some(first) = lines.first() else { return false };
    source.windows(lines.len()).any(|window| {
        let indent = window[0].strip_suffix(first).filter(|indent| indent.trim().is_empty());
        indent.is_some_and(|indent| {
            window.iter().zip(&lines).all(|(found, line)| match line.trim().is_empty() {
                true => found.trim().is_empty(),
                false => found.strip_prefix(indent) == Some(line),
            })
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indentation_may_be_removed_and_nothing_else() {
        let source = "fn f() {\n    if a {\n        b();\n\n    }\n}\n";
        assert!(is_excerpt("if a {\n    b();\n\n}\n", source));
        assert!(is_excerpt(source, source));
        assert!(!is_excerpt("if a {\n    c();\n\n}\n", source));
        assert!(!is_excerpt("if a {\nb();\n\n}\n", source));
        assert!(!is_excerpt("", source));
    }
}

//! The table of rules beyond the papers states the size of each rule.

use dunlin_docs::pages::root;

/// Returns the lines and the constants of a source file before its tests.
fn size(file: &str) -> (usize, usize) {
    let text = std::fs::read_to_string(root().join("crates").join(file)).expect("the source of a rule");
    let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default().trim_end();
    let is_constant = |line: &&str| {
        let line = line.trim_start();
        let line = line.strip_prefix("pub(crate) ").or(line.strip_prefix("pub ")).unwrap_or(line);
        line.strip_prefix("const ").is_some_and(|name| name.starts_with(|c: char| c.is_ascii_uppercase()))
    };
    (code.lines().count(), code.lines().filter(is_constant).count())
}

#[test]
fn rules_beyond_the_papers_have_the_stated_size() {
    let page = std::fs::read_to_string(root().join("docs/internals/rules.md")).expect("the page of rules");
    let mut rules = 0;
    for row in page.lines().filter(|line| line.contains(".rs`")) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let [_, rule, files, lines, constants, plain, brings, ..] = cells[..] else {
            panic!("a row of seven cells: {row}");
        };
        let sizes = files.split('`').filter(|part| part.ends_with(".rs")).map(size);
        let sum = sizes.fold((0, 0), |sum, size| (sum.0 + size.0, sum.1 + size.1));
        assert_eq!((lines, constants), (&*sum.0.to_string(), &*sum.1.to_string()), "{rule}");
        assert!(!plain.is_empty() && brings.contains(|c: char| c.is_ascii_digit()), "{rule}");
        rules += 1;
    }
    assert!(rules >= 7, "{rules} rules were read");
}

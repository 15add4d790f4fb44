//! The code in docs/writing-a-policy.md is the code in the files that it quotes.

const PAGE: &str = include_str!("../../../docs/writing-a-policy.md");
const LOTTERY: &str = include_str!("../src/policies/lottery.rs");
const TABLE: &str = include_str!("../src/policies/mod.rs");
const TRAIT: &str = include_str!("../src/policy.rs");

/// The code blocks of the page that quote `file`, in order.
fn quotations(file: &str) -> Vec<String> {
    let fence = format!("```rust {file}");
    let mut lines = PAGE.lines();
    let mut found = Vec::new();
    while lines.any(|line| line == fence) {
        let block: Vec<_> = lines.by_ref().take_while(|line| *line != "```").collect();
        found.push(block.join("\n"));
    }
    found
}

/// The lines of a text, without the empty ones: the page may split the file at any of them.
fn lines(text: &str) -> Vec<&str> {
    text.lines().filter(|line| !line.trim().is_empty()).collect()
}

#[test]
fn page_quotes_the_whole_lottery_policy() {
    let page = quotations("lottery.rs").join("\n");
    let file = LOTTERY.split("#[cfg(test)]").next().unwrap();
    assert!(lines(&page).len() > 80);
    for (quoted, written) in lines(&page).into_iter().zip(lines(file)) {
        assert_eq!(quoted, written, "the page differs from lottery.rs: update docs/writing-a-policy.md");
    }
    assert_eq!(lines(&page).len(), lines(file).len());
}

#[test]
fn page_quotes_the_table_and_the_trait() {
    for (name, file) in [("mod.rs", TABLE), ("policy.rs", TRAIT)] {
        let [quotation] = &quotations(name)[..] else { panic!("the page quotes {name} once") };
        assert!(file.contains(quotation), "the page differs from {name}: update docs/writing-a-policy.md");
    }
}

#[test]
fn every_rust_block_of_the_page_is_a_quotation() {
    let quoted: usize = ["lottery.rs", "mod.rs", "policy.rs"].map(|file| quotations(file).len()).iter().sum();
    let blocks = PAGE.lines().filter(|line| line.starts_with("```rust")).count();
    assert_eq!(quoted, blocks);
}

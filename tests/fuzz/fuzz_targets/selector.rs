//! Parses arbitrary text as a selector. The text of a parsed selector parses too, and both
//! selectors match, or do not match, the labels `a=b`.
#![no_main]

use std::collections::BTreeMap;

use libcalico::selector::Selector;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(selector) = Selector::parse(text) {
        let labels = BTreeMap::from([("a".to_owned(), "b".to_owned())]);
        let printed = selector.to_string();
        let again = Selector::parse(&printed).expect("what is printed parses");
        assert_eq!(
            selector.matches(&labels),
            again.matches(&labels),
            "{printed}"
        );
    }
});

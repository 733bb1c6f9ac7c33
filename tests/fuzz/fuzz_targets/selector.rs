//! Parses arbitrary text as a selector. A parsed selector prints as text that parses to the same selector.
#![no_main]

use std::collections::BTreeMap;

use libcalico::selector::Selector;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(selector) = Selector::parse(text) {
        let labels = BTreeMap::from([("a".to_owned(), "b".to_owned())]);
        let printed = selector.to_string();
        let again = Selector::parse(&printed).expect("what is printed parses");
        assert_eq!(selector.matches(&labels), again.matches(&labels), "{printed}");
    }
});

//! Strings, Booleans, integers and addresses.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use serde_json::Value;

use super::document::DecodeError;
use super::node::{FromNode, Node};

impl FromNode for String {
    fn from_node(node: &Node<'_>) -> Result<String, DecodeError> {
        node.text("a string").map(str::to_owned)
    }
}

impl FromNode for bool {
    fn from_node(node: &Node<'_>) -> Result<bool, DecodeError> {
        node.value
            .as_bool()
            .ok_or_else(|| node.wrong_type("true or false"))
    }
}

impl FromNode for u32 {
    fn from_node(node: &Node<'_>) -> Result<u32, DecodeError> {
        node.integer(0..=u32::MAX)
    }
}

impl FromNode for i32 {
    fn from_node(node: &Node<'_>) -> Result<i32, DecodeError> {
        node.integer(i32::MIN..=i32::MAX)
    }
}

impl FromNode for IpAddr {
    fn from_node(node: &Node<'_>) -> Result<IpAddr, DecodeError> {
        const WANT: &str = "an IP address";
        node.text(WANT)?.parse().map_err(|_| node.bad_value(WANT))
    }
}

pub(crate) trait Integer: Copy + Into<i128> + TryFrom<i128> {}

impl<T: Copy + Into<i128> + TryFrom<i128>> Integer for T {}

impl Node<'_> {
    /// `want` describes the allowed values for the error.
    pub(crate) fn text(&self, want: &str) -> Result<&str, DecodeError> {
        self.value.as_str().ok_or_else(|| self.wrong_type(want))
    }

    /// As in Go, `1500.0` and `1e3` are not integers.
    pub(crate) fn integer<T: Integer>(&self, range: RangeInclusive<T>) -> Result<T, DecodeError> {
        let (low, high) = ((*range.start()).into(), (*range.end()).into());
        self.integer_where(format!("an integer from {low} to {high}"), |integer| {
            (low..=high).contains(&integer)
        })
    }

    /// Accepts also 0, which means "not set".
    pub(crate) fn zero_or_integer<T: Integer>(
        &self,
        range: RangeInclusive<T>,
    ) -> Result<T, DecodeError> {
        let (low, high) = ((*range.start()).into(), (*range.end()).into());
        let want = format!("0 or an integer from {low} to {high}");
        self.integer_where(want, |integer| {
            integer == 0 || (low..=high).contains(&integer)
        })
    }

    /// Fails if `allows` rejects the integer; `want` describes the allowed values for the error.
    fn integer_where<T: TryFrom<i128>>(
        &self,
        want: String,
        allows: impl Fn(i128) -> bool,
    ) -> Result<T, DecodeError> {
        let Value::Number(number) = self.value else {
            return Err(self.wrong_type(&want));
        };
        let integer = number
            .as_i64()
            .map(i128::from)
            .or_else(|| number.as_u64().map(i128::from));
        match integer {
            Some(integer) if allows(integer) => {
                T::try_from(integer).map_err(|_| self.bad_value(&want))
            }
            Some(_) => Err(self.bad_value(&want)),
            // serde_json parses an integer beyond 64 bits as a float.
            None if number
                .as_f64()
                .is_some_and(|float| float.abs() >= i64::MAX as f64) =>
            {
                Err(self.bad_value(&want))
            }
            None => Err(self.wrong_type(&want)),
        }
    }

    /// Returns the value that `words` assigns to the string at this position. Fails for any other
    /// string.
    pub(crate) fn word<T: Copy>(
        &self,
        words: &[(&str, T)],
        ignores_case: bool,
    ) -> Result<T, DecodeError> {
        let quoted: Vec<String> = words.iter().map(|(word, _)| format!("{word:?}")).collect();
        let want = format!("the string {}", quoted.join(" or "));
        let text = self.text(&want)?;
        let found = words
            .iter()
            .find(|(word, _)| *word == text || ignores_case && word.eq_ignore_ascii_case(text));
        found
            .map(|(_, value)| *value)
            .ok_or_else(|| self.bad_value(&want))
    }
}

//! Checks with generated inputs that the decoders do not panic. `FUZZ_SECONDS` sets the duration of
//! each test (1 by default).

mod mutation;

use libcalico::variables::Variables;
use std::time::Instant;

use mutation::{json_text, mutated};
use netconf::{
    CniArgs, CniError, CniResult, Code, Command, Invocation, NetConf, Plugin, Version, invocation,
    read_call,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use repository::effort::fuzz_time;

fn fuzz<S: Strategy>(strategy: S, test: impl Fn(S::Value)) {
    let end = Instant::now() + fuzz_time();
    let config = Config {
        cases: 64,
        failure_persistence: None,
        ..Config::default()
    };
    while Instant::now() < end {
        let run = TestRunner::new(config.clone()).run(&strategy, |value| {
            test(value);
            Ok(())
        });
        run.unwrap_or_else(|failure| panic!("{failure}"));
    }
}

fn decode_everything(bytes: &[u8]) {
    for command in Command::ALL {
        let lookup = |name: &str| {
            Some(
                if name == "CNI_COMMAND" {
                    command.as_str()
                } else {
                    "x"
                }
                .to_owned(),
            )
        };
        if let Err(error) = read_call(Variables::new(&lookup), || Ok(bytes.to_vec())) {
            assert!((1..=7).contains(&error.error.code.0), "{error}");
            assert!(!error.error.to_json(error.version).is_empty());
        }
    }
    if let Err(error) = NetConf::parse(bytes) {
        assert!(
            (1..=7).contains(&error.code.0) && !error.msg.is_empty(),
            "{error:?}"
        );
    }
    if let Some(error) = CniError::parse(bytes) {
        let printed = error.to_json(None);
        let again = CniError::parse(printed.as_bytes()).expect("it is an error object");
        assert_eq!((again.code, again.to_json(None)), (error.code, printed));
    }
    for version in Version::ALL {
        let Ok(result) = CniResult::parse(bytes, version) else {
            continue;
        };
        for version in Version::ALL {
            let Ok(printed) = result.to_json(version) else {
                continue;
            };
            let again = CniResult::parse(printed.as_bytes(), version).expect("it is a result");
            assert_eq!(again.to_json(version), Ok(printed));
        }
    }
}

#[test]
fn decoding_random_bytes_never_panics() {
    fuzz(prop::collection::vec(any::<u8>(), 0..200), |bytes| {
        decode_everything(&bytes)
    });
}

#[test]
fn decoding_random_json_never_panics() {
    fuzz(json_text(), |text| decode_everything(text.as_bytes()));
}

#[test]
fn decoding_damaged_configurations_and_results_never_panics() {
    fuzz(mutated(), |bytes| decode_everything(&bytes));
}

#[test]
fn printed_errors_are_decoded_with_their_code() {
    let text = || prop_oneof![any::<String>(), "[a-z \n]{0,20}"];
    fuzz((0..3000u32, text(), text()), |(code, msg, details)| {
        let printed = CniError::new(Code(code), msg)
            .with_details(details)
            .to_json(None);
        assert_eq!(
            CniError::parse(printed.as_bytes()).map(|error| error.code),
            Some(Code(code)),
            "{printed}"
        );
        decode_everything(printed.as_bytes());
    });
}

#[test]
fn random_environment_and_arguments_never_panic() {
    let text = || prop_oneof![any::<String>(), "[A-Z0-9_=;.:/a-z-]{0,40}"];
    let variables = prop::collection::vec(text(), 5);
    fuzz(
        (text(), variables, prop::collection::vec(text(), 0..4)),
        |(args, variables, arguments)| {
            if let Err(error) = CniArgs::parse(&args) {
                assert!(
                    error.code == Code::INVALID_ENVIRONMENT && !error.msg.is_empty(),
                    "{error:?}"
                );
            }
            let lookup = |name: &str| match name {
                "CNI_COMMAND" => Some("ADD".to_owned()),
                "CNI_ARGS" => Some(args.clone()),
                "CNI_CONTAINERID" => variables.first().cloned(),
                "CNI_NETNS" => variables.get(1).cloned(),
                "CNI_IFNAME" => variables.get(2).cloned(),
                "CNI_PATH" => variables.get(3).cloned(),
                _ => variables.get(4).cloned(),
            };
            for plugin in [Plugin::Calico, Plugin::CalicoIpam] {
                match invocation(plugin, "v", &arguments, Variables::new(&lookup), || {
                    Ok(b"{\"name\":\"n\"}".to_vec())
                }) {
                    Ok(Invocation::Print(output)) => {
                        assert!(!(output.stdout + &output.stderr).is_empty())
                    }
                    Ok(_) => {}
                    Err(error) => assert!((1..=7).contains(&error.error.code.0), "{error}"),
                }
            }
        },
    );
}

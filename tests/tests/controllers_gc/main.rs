//! Garbage collection on real servers: what nobody holds any more goes within its grace period, and nothing else.

mod blocks;
mod claims;
mod killed;
mod lab;
mod leaks;
mod machines;
mod nodes;
mod requests;
mod reused;
mod swallowed;
mod telling;

/// Makes each named function, `fn(&Lab)`, a test with Calico's objects in etcd, and one with custom resources.
macro_rules! on_each_datastore {
    ($($test:ident),* $(,)?) => {
        mod etcd {
            $(#[test] fn $test() { $crate::lab::on(None, super::$test) })*
        }
        mod custom_resources {
            $(#[test] fn $test() { $crate::lab::on(Some(libcalico::kubernetes::ApiGroup::CrdV1), super::$test) })*
        }
    };
}
pub(crate) use on_each_datastore;

//! The service of `bench typed` and of the example `typed_steps`: every function returns its argument.

use dunlin::thrift::{Bytes, Context, Failure, FastStr, Never, owned_str};

#[allow(missing_docs, unreachable_pub, unused)]
mod service {
    dunlin::include_service!("typed");
}
pub use service::typed::*;

/// A handler whose functions return their arguments.
#[derive(Clone, Debug)]
pub struct Handler;

impl Typed for Handler {
    fn echo(&self, _: &Context, data: &[u8]) -> Result<Bytes, Failure<Never>> {
        Ok(Bytes::copy_from_slice(data))
    }

    fn look(&self, _: &Context, data: &[u8]) -> Result<Bytes, Failure<TypedLookException>> {
        Ok(Bytes::copy_from_slice(data))
    }

    fn say(&self, _: &Context, text: &str) -> Result<FastStr, Failure<Never>> {
        Ok(owned_str(text))
    }

    fn sum(&self, _: &Context, a: i64, b: i64, c: i64, d: i64) -> Result<i64, Failure<Never>> {
        Ok(a.wrapping_add(b).wrapping_add(c).wrapping_add(d))
    }

    fn turn(&self, _: &Context, point: Point) -> Result<Point, Failure<Never>> {
        Ok(point)
    }
}

//! Dunlin's handler of the service.

use crate::idl::{Colour, EverythingDivideException, Overflow, Record, Refused, Shape, Uuids};
use dunlin::thrift::pilota::{AHashMap, AHashSet};
use dunlin::thrift::{Bytes, Context, Failure, FastStr, Never};
use std::sync::atomic::{AtomicI64, Ordering};

/// Returns its arguments.
#[derive(Debug, Default)]
pub(crate) struct Handler {
    told: AtomicI64,
}

type Answer<T> = Result<T, Failure<Never>>;

impl Uuids for Handler {
    fn ping(&self, _: &Context) -> Answer<()> {
        Ok(())
    }
    fn echo_record(&self, _: &Context, value: Record) -> Answer<Record> {
        Ok(value)
    }
    fn echo_bool(&self, _: &Context, value: bool) -> Answer<bool> {
        Ok(value)
    }
    fn echo_byte(&self, _: &Context, value: i8) -> Answer<i8> {
        Ok(value)
    }
    fn echo_short(&self, _: &Context, value: i16) -> Answer<i16> {
        Ok(value)
    }
    fn echo_int(&self, _: &Context, value: i32) -> Answer<i32> {
        Ok(value)
    }
    fn echo_long(&self, _: &Context, value: i64) -> Answer<i64> {
        Ok(value)
    }
    fn echo_double(&self, _: &Context, value: f64) -> Answer<f64> {
        Ok(value)
    }
    fn echo_string(&self, _: &Context, value: &str) -> Answer<FastStr> {
        Ok(FastStr::new(value))
    }
    fn echo_binary(&self, _: &Context, value: &[u8]) -> Answer<Bytes> {
        Ok(Bytes::copy_from_slice(value))
    }
    fn echo_list(&self, _: &Context, value: Vec<i64>) -> Answer<Vec<i64>> {
        Ok(value)
    }
    fn echo_set(&self, _: &Context, value: AHashSet<i32>) -> Answer<AHashSet<i32>> {
        Ok(value)
    }
    fn echo_map(&self, _: &Context, value: AHashMap<FastStr, FastStr>) -> Answer<AHashMap<FastStr, FastStr>> {
        Ok(value)
    }
    fn echo_colour(&self, _: &Context, value: Colour) -> Answer<Colour> {
        Ok(value)
    }
    fn echo_shape(&self, _: &Context, value: Shape) -> Answer<Shape> {
        Ok(value)
    }
    fn divide(
        &self,
        _: &Context,
        dividend: i32,
        divisor: i32,
    ) -> Result<i32, Failure<EverythingDivideException>> {
        if divisor == 0 {
            return Err(Refused { code: 22, why: "division by zero".into() }.into());
        }
        let quotient = dividend.checked_div(divisor);
        quotient.ok_or_else(|| Overflow { calculation: format!("{dividend} / {divisor}").into() }.into())
    }
    fn tell(&self, _: &Context, number: i32) -> Answer<()> {
        self.told.fetch_add(number.into(), Ordering::SeqCst);
        Ok(())
    }
    fn told(&self, _: &Context) -> Answer<i64> {
        Ok(self.told.swap(0, Ordering::SeqCst))
    }
    fn scaled(&self, _: &Context, value: i32, factor: i32) -> Answer<i32> {
        Ok(value * factor)
    }
    fn fail(&self, _: &Context, why: &str) -> Answer<()> {
        match why {
            "panic" => panic!("as the client wants"),
            why => Err(Failure::internal(why.to_owned())),
        }
    }
    fn echo_uuid(&self, _: &Context, value: [u8; 16]) -> Answer<[u8; 16]> {
        Ok(value)
    }
}

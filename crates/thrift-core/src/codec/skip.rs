//! Skipping of values that the reader's IDL does not know.

use super::cursor::invalid;
use pilota::thrift::{ProtocolExceptionKind, TInputProtocol, TType, ThriftException, new_protocol_exception};

/// Reads and discards a value. `binary` reads a value of type `Binary`.
pub(super) fn skip<P: TInputProtocol>(
    input: &mut P,
    kind: TType,
    levels: u16,
    binary: fn(&mut P) -> Result<(), ThriftException>,
) -> Result<(), ThriftException> {
    let Some(below) = levels.checked_sub(1) else {
        return Err(new_protocol_exception(
            ProtocolExceptionKind::DepthLimit,
            "a value that is skipped is nested too deep",
        ));
    };
    match kind {
        TType::Bool => drop(input.read_bool()?),
        TType::I8 => drop(input.read_i8()?),
        TType::I16 => drop(input.read_i16()?),
        TType::I32 => drop(input.read_i32()?),
        TType::I64 => drop(input.read_i64()?),
        TType::Double => drop(input.read_double()?),
        TType::Uuid => drop(input.read_uuid()?),
        TType::Binary => binary(input)?,
        TType::Struct => {
            input.read_struct_begin()?;
            loop {
                let field = input.read_field_begin()?;
                if field.field_type == TType::Stop {
                    break;
                }
                skip(input, field.field_type, below, binary)?;
                input.read_field_end()?;
            }
            input.read_struct_end()?;
        }
        TType::List => {
            let list = input.read_list_begin()?;
            for _ in 0..list.size {
                skip(input, list.element_type, below, binary)?;
            }
            input.read_list_end()?;
        }
        TType::Set => {
            let set = input.read_set_begin()?;
            for _ in 0..set.size {
                skip(input, set.element_type, below, binary)?;
            }
            input.read_set_end()?;
        }
        TType::Map => {
            let map = input.read_map_begin()?;
            for _ in 0..map.size {
                skip(input, map.key_type, below, binary)?;
                skip(input, map.value_type, below, binary)?;
            }
            input.read_map_end()?;
        }
        TType::Stop | TType::Void => return Err(invalid(format!("{kind:?} is not a type of values"))),
    }
    Ok(())
}

/// Implements the length protocol with zeros. pilota needs lengths only to keep unknown fields, and these
/// readers skip them.
macro_rules! no_lengths {
    ($type:ident) => {
        impl pilota::thrift::TLengthProtocol for $type<'_> {
            no_lengths!(@ message_begin_len(&pilota::thrift::TMessageIdentifier), message_end_len(),
                struct_begin_len(&pilota::thrift::TStructIdentifier), struct_end_len(),
                field_begin_len(pilota::thrift::TType, Option<i16>), field_end_len(), field_stop_len(),
                bool_len(bool), bytes_len(&[u8]), bytes_vec_len(&[u8]), byte_len(u8), uuid_len([u8; 16]), i8_len(i8),
                i16_len(i16), i32_len(i32), i64_len(i64), double_len(f64), string_len(&str),
                faststr_len(&pilota::FastStr), list_begin_len(pilota::thrift::TListIdentifier), list_end_len(),
                set_begin_len(pilota::thrift::TSetIdentifier), set_end_len(),
                map_begin_len(pilota::thrift::TMapIdentifier), map_end_len());
        }
    };
    (@ $($name:ident($($argument:ty),*)),*) => {
        $(#[inline]
        fn $name(&mut self, $(_: $argument),*) -> usize {
            0
        })*
    };
}
pub(super) use no_lengths;

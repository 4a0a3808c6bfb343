//! Completes values for pilota's generator: adds the defaults of omitted fields to struct values in constants
//! and defaults. Values that the generator cannot write are rejected with their location; the generator would
//! exit the process instead.

use crate::Error;
use crate::unions::{self, Declared};
use dunlin_idl::hints::Place;
use dunlin_idl::{DefinitionId, DefinitionKind, Document, Field, File, FileId, Literal, Type, Value};
use std::fmt::Write as _;

/// The maximum number of values in one completed value, which bounds nested defaults.
const MAX_VALUES: usize = 1 << 16;

/// Returns the files' texts for the generator, in order.
pub(crate) fn texts(document: &Document) -> Result<Vec<String>, Error> {
    let mut texts = Vec::new();
    let mut number = 0;
    for (index, file) in document.files.iter().enumerate() {
        let id = FileId(index);
        let mut changes = Vec::new();
        let mut unions = Declared { document, file: id, number, text: String::new() };
        for (name, place, ty, literal, inline) in written(document, file, id) {
            let wrong = |problem| Error::Value { name: name.to_owned(), place: place.clone(), problem };
            let complete = |inline| {
                let mut within = Within { document, inline, open: Vec::new(), values: 0, unions: false };
                let value = within.complete(ty, &literal.value).map_err(wrong)?;
                Ok((value, within.unions))
            };
            let (value, has_unions) = complete(inline)?;
            if value != literal.value || has_unions {
                if literal.span.is_empty() {
                    return Err(wrong("it was not found behind its name: write out all of it".to_owned()));
                }
                let mut new = String::new();
                print(&mut new, ty, &complete(true)?.0, &mut unions).map_err(wrong)?;
                changes.push((literal.span.clone(), new));
            }
        }
        changes.sort_by_key(|(span, _)| span.start);
        let mut text = file.blanked_text.clone();
        for (span, mut new) in changes.into_iter().rev() {
            let lines = text[span.clone()].matches('\n').count();
            // The text that follows stays on its line.
            new.extend(std::iter::repeat_n('\n', lines));
            text.replace_range(span, &new);
        }
        text.push_str(&unions.text);
        number = unions.number;
        texts.push(text);
    }
    Ok(texts)
}

/// Returns the values in a file: name, location, type and value, and whether constant names must be replaced
/// by their values.
fn written<'a>(
    document: &'a Document,
    file: &'a File,
    id: FileId,
) -> impl Iterator<Item = (&'a str, &'a Place, &'a Type, &'a Literal, bool)> {
    let of_field = |field: &'a Field, inline: bool| {
        Some((field.name.as_str(), &field.place, &field.ty, field.default.as_ref()?, inline))
    };
    let definitions = file.definitions.iter().flat_map(move |definition| {
        let (fields, constant) = match &definition.kind {
            DefinitionKind::Constant(ty, literal) => {
                (&[][..], Some((definition.name.as_str(), &definition.place, ty, literal, false)))
            }
            kind => (fields(kind), None),
        };
        constant.into_iter().chain(fields.iter().filter_map(move |field| of_field(field, false)))
    });
    let functions = document.services.iter().filter(move |service| service.file == id);
    let arguments = functions.flat_map(|service| &service.functions).flat_map(|it| &it.arguments);
    // String and binary arguments are borrowed, so the literal itself must appear there.
    definitions.chain(
        arguments.filter_map(move |field| of_field(field, matches!(field.ty, Type::String | Type::Binary))),
    )
}

fn fields(kind: &DefinitionKind) -> &[Field] {
    match kind {
        DefinitionKind::Struct(fields)
        | DefinitionKind::Union(fields)
        | DefinitionKind::Exception(fields) => fields,
        _ => &[],
    }
}

struct Within<'a> {
    document: &'a Document,
    /// Whether names are replaced by their values, because they may have another meaning in the place where
    /// the value is inserted.
    inline: bool,
    /// The defaults and constants that are being completed.
    open: Vec<(DefinitionId, usize)>,
    values: usize,
    /// Whether any of the values was of a union.
    unions: bool,
}

impl<'a> Within<'a> {
    fn complete(&mut self, ty: &Type, value: &Value) -> Result<Value, String> {
        self.values += 1;
        if self.values > MAX_VALUES {
            return Err(format!("with the defaults within it, it has more than {MAX_VALUES} values"));
        }
        let ty = base(self.document, ty);
        if let Value::Constant(id) = value {
            return self.constant(&ty, *id);
        }
        Ok(match (&ty, value) {
            (Type::List(element) | Type::Set(element), Value::List(values)) => Value::List(
                values.iter().map(|value| self.complete(element, value)).collect::<Result<_, _>>()?,
            ),
            (Type::Map(..), Value::List(values)) if values.is_empty() => value.clone(),
            (Type::Map(key, element), Value::Map(pairs)) => {
                let pair = |(first, second): &(Value, Value)| {
                    Ok::<_, String>((self.complete(key, first)?, self.complete(element, second)?))
                };
                Value::Map(pairs.iter().map(pair).collect::<Result<_, _>>()?)
            }
            (Type::Named(id), value) => self.named(*id, value)?,
            (Type::Bool, Value::Bool(_) | Value::Int(_))
            | (Type::I64 | Type::Double, Value::Int(_))
            | (Type::Double, Value::Double(_))
            | (Type::String | Type::Binary, Value::Text(_)) => value.clone(),
            (Type::I8, Value::Int(number)) if i8::try_from(*number).is_ok() => value.clone(),
            (Type::I16, Value::Int(number)) if i16::try_from(*number).is_ok() => value.clone(),
            (Type::I32, Value::Int(number)) if i32::try_from(*number).is_ok() => value.clone(),
            (Type::I8 | Type::I16 | Type::I32 | Type::I64, Value::EnumValue { of, name }) => {
                self.complete(&ty, &Value::Int(self.number(*of, name)))?
            }
            (Type::Uuid, Value::Text(_)) => {
                return Err("values of uuid cannot be generated: make it in the program".to_owned());
            }
            (ty, value) => return Err(format!("{} is no value of {}", shown(value), self.name(ty))),
        })
    }

    /// Returns the value of a constant, or its name.
    fn constant(&mut self, ty: &Type, id: DefinitionId) -> Result<Value, String> {
        let document = self.document;
        let definition = document.definition(id);
        let DefinitionKind::Constant(of, literal) = &definition.kind else {
            return Err(format!("'{}' is no constant", definition.name));
        };
        if self.open.contains(&(id, 0)) {
            return Err(format!("the constant '{}' is itself within its value", definition.name));
        }
        // The generator accepts only the names of constants of the same type, and not those of lists.
        let same = base(self.document, of) == *ty && !matches!(ty, Type::List(_));
        self.open.push((id, 0));
        let before = self.inline;
        let mut inline = before || !same;
        self.inline = inline;
        let unions = std::mem::take(&mut self.unions);
        let mut value = self.complete(ty, &literal.value)?;
        if self.unions && !inline {
            // Such a constant may be initialized lazily, which the generator does not expect.
            (self.inline, inline) = (true, true);
            value = self.complete(ty, &literal.value)?;
        }
        self.unions |= unions;
        self.inline = before;
        self.open.pop();
        Ok(if inline { value } else { Value::Constant(id) })
    }

    /// Completes a value of an enum or a struct.
    fn named(&mut self, id: DefinitionId, value: &Value) -> Result<Value, String> {
        let document = self.document;
        let definition = document.definition(id);
        match (&definition.kind, value) {
            (DefinitionKind::Enum(_), Value::EnumValue { of, name }) if *of == id => {
                let number = self.number(id, name);
                Ok(if self.inline { Value::Int(number) } else { value.clone() })
            }
            (DefinitionKind::Enum(values), Value::Int(number))
                if values.iter().any(|value| i64::from(value.number) == *number) =>
            {
                Ok(value.clone())
            }
            (DefinitionKind::Struct(fields) | DefinitionKind::Exception(fields), Value::Map(pairs)) => {
                let mut named = Vec::new();
                for (key, value) in pairs {
                    let Value::Text(key) = key else {
                        return Err(format!("a field of '{}' is named by a text", definition.name));
                    };
                    let Some(field) = fields.iter().find(|field| field.name == *key) else {
                        return Err(format!("'{}' has no field '{key}'", definition.name));
                    };
                    named.push((Value::Text(key.clone()), self.complete(&field.ty, value)?));
                }
                let has =
                    |field: &Field| named.iter().any(|(key, _)| *key == Value::Text(field.name.clone()));
                let left_out = fields.iter().enumerate().filter(|(_, field)| !has(field));
                let mut defaults = Vec::new();
                for (index, field) in left_out {
                    let Some(default) = &field.default else { continue };
                    // Constants use the index 0, so fields are counted from 1.
                    if self.open.contains(&(id, index + 1)) {
                        return Err(format!("the default of '{}' is itself within it", field.name));
                    }
                    self.open.push((id, index + 1));
                    let inline = std::mem::replace(&mut self.inline, true);
                    defaults
                        .push((Value::Text(field.name.clone()), self.complete(&field.ty, &default.value)?));
                    self.inline = inline;
                    self.open.pop();
                }
                named.extend(defaults);
                Ok(Value::Map(named))
            }
            (DefinitionKind::Union(_), Value::Map(pairs)) => {
                let (Some(field), [(key, within)]) = (unions::field(document, id, value), &pairs[..]) else {
                    return Err(format!(
                        "a value of the union '{}' names one of its fields",
                        definition.name
                    ));
                };
                self.unions = true;
                Ok(Value::Map(vec![(key.clone(), self.complete(&field.ty, within)?)]))
            }
            (_, value) => Err(format!("{} is no value of '{}'", shown(value), definition.name)),
        }
    }

    fn number(&self, of: DefinitionId, name: &str) -> i64 {
        match &self.document.definition(of).kind {
            DefinitionKind::Enum(values) => {
                values.iter().find(|value| value.name == name).map_or(0, |value| value.number.into())
            }
            _ => 0,
        }
    }

    fn name(&self, ty: &Type) -> String {
        match ty {
            Type::Named(id) => format!("'{}'", self.document.definition(*id).name),
            Type::List(element) => format!("list<{}>", self.name(element)),
            Type::Set(element) => format!("set<{}>", self.name(element)),
            Type::Map(key, element) => format!("map<{}, {}>", self.name(key), self.name(element)),
            ty => format!("{ty:?}").to_lowercase(),
        }
    }
}

/// Resolves typedefs.
fn base(document: &Document, ty: &Type) -> Type {
    let mut ty = ty;
    while let Type::Named(id) = ty
        && let DefinitionKind::Typedef(target) = &document.definition(*id).kind
    {
        ty = target;
    }
    ty.clone()
}

/// Returns a description of a value for an error message.
fn shown(value: &Value) -> String {
    match value {
        Value::List(_) => "a list".to_owned(),
        Value::Map(_) => "a map".to_owned(),
        Value::EnumValue { name, .. } => format!("'{name}'"),
        value => {
            let mut out = String::new();
            print_one(&mut out, value);
            out
        }
    }
}

/// Prints a value in Thrift syntax, with names replaced and with names for values of unions.
fn print(out: &mut String, ty: &Type, value: &Value, unions: &mut Declared<'_>) -> Result<(), String> {
    let document = unions.document;
    match (base(document, ty), value) {
        (Type::List(element) | Type::Set(element), Value::List(values)) => {
            out.push('[');
            for value in values {
                print(out, &element, value, unions)?;
                out.push_str(", ");
            }
            out.push(']');
        }
        (Type::Map(key_type, element), Value::Map(pairs)) => {
            out.push('{');
            for (key, value) in pairs {
                print(out, &key_type, key, unions)?;
                out.push_str(": ");
                print(out, &element, value, unions)?;
                out.push_str(", ");
            }
            out.push('}');
        }
        (Type::Named(id), Value::Map(pairs)) => {
            if let (Some(field), [(_, within)]) = (unions::field(document, id, value), &pairs[..]) {
                let mut text = String::new();
                print(&mut text, &field.ty, within, unions)?;
                out.push_str(&unions.name(id, field, &text)?);
                return Ok(());
            }
            out.push('{');
            for (key, value) in pairs {
                let fields = fields(&document.definition(id).kind);
                let Some(field) = fields.iter().find(|field| *key == Value::Text(field.name.clone())) else {
                    continue;
                };
                print_one(out, key);
                out.push_str(": ");
                print(out, &field.ty, value, unions)?;
                out.push_str(", ");
            }
            out.push('}');
        }
        // Also an empty map.
        (_, Value::List(_)) => out.push_str("[]"),
        (_, value) => print_one(out, value),
    }
    Ok(())
}

/// Prints a value that contains no others.
fn print_one(out: &mut String, value: &Value) {
    match value {
        Value::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
        Value::Int(value) => out.push_str(&value.to_string()),
        Value::Double(value) => out.push_str(value),
        Value::Text(text) => {
            out.push('"');
            for character in text.chars() {
                match character {
                    '"' | '\\' => {
                        let _ = write!(out, "\\{character}");
                    }
                    '\n' => out.push_str("\\n"),
                    '\r' => out.push_str("\\r"),
                    character => out.push(character),
                }
            }
            out.push('"');
        }
        Value::Constant(_) | Value::EnumValue { .. } | Value::List(_) | Value::Map(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dunlin_idl::{Memory, Options, load_with};

    fn of(files: &[(&str, &str)]) -> Result<Vec<String>, Error> {
        let files = files.iter().fold(Memory::new(), |files, (name, text)| files.with(name, *text));
        texts(&load_with("a.thrift", &Options::default(), &files).expect("a document"))
    }

    #[test]
    fn only_what_is_not_complete_is_written_anew() {
        let text = "struct P { 1: i32 x = 5 // five\n 2: optional string s = \"q\" }\nconst P A = {'x': 3, \"s\":'t'}
const list<P> B = [{'x': 1},\n A] const i32 C = -1 const i64 D = C";
        let completed = "struct P { 1: i32 x = 5 // five\n 2: optional string s = \"q\" }\nconst P A = {'x': 3, \"s\":'t'}
const list<P> B = [{\"x\": 1, \"s\": \"q\", }, {\"x\": 3, \"s\": \"t\", }, ]\n const i32 C = -1 const i64 D = -1";
        assert_eq!(of(&[("a.thrift", text)]).unwrap(), [completed]);
    }

    /// In the file where a default is inserted, its names may have another meaning.
    #[test]
    fn defaults_of_other_files_come_without_names() {
        let b = "include \"c.thrift\" enum E { X = 3 } const i32 N = c.M\nstruct S { 1: E e = E.X, 2: required i32 n = N }";
        let a = "include \"b.thrift\"\nservice T { void f(1: b.S s = {'n': 1}, 2: string t = U, 3: b.S r = {}) }\nconst string U = 'a\"\\n'";
        let texts = of(&[("a.thrift", a), ("b.thrift", b), ("c.thrift", "const i32 M = 8")]).unwrap();
        let completed = "void f(1: b.S s = {\"n\": 1, \"e\": 3, }, 2: string t = \"a\\\"\\n\", 3: b.S r = {\"e\": 3, \"n\": 8, }) }";
        assert!(texts[0].contains(completed), "{}", texts[0]);
        assert_eq!(texts[1], b);
    }

    /// A union value is replaced by a name, whose content follows the text. Numbers are unique across files.
    #[test]
    fn values_of_unions_become_names() {
        let b = "union U { 1: i32 x 2: list<U> l }\nstruct S { 1: U u = {'x': 1} }";
        let a = "include \"b.thrift\"\nconst b.U A = {'l': [{'x': 2}]} const b.U B = A";
        let texts = of(&[("a.thrift", a), ("b.thrift", b)]).unwrap();
        let [a, b] = &texts[..] else { panic!("{texts:?}") };
        assert!(
            a.contains("const b.U A = DUNLIN_UNION_VALUE_1 const b.U B = DUNLIN_UNION_VALUE_3\nstruct"),
            "{a}"
        );
        assert!(a.contains("= {\"value\": 2}\nconst b.U DUNLIN_UNION_VALUE_0 = b.U.x\n"), "{a}");
        assert!(a.contains("{ 1: required list<b.U> value }\n"), "{a}");
        assert!(
            a.contains("= {\"value\": [DUNLIN_UNION_VALUE_0, ]}\nconst b.U DUNLIN_UNION_VALUE_1 = b.U.l"),
            "{a}"
        );
        assert!(b.contains("1: U u = DUNLIN_UNION_VALUE_4 }\nstruct"), "{b}");
        // The union's type cannot be named in that file.
        let c = "include \"a.thrift\"\nservice T { void f(1: a.S s = {}) }";
        let a = "include \"b.thrift\"\nstruct S { 1: b.U u = {'x': 1} }";
        let b = "union U { 1: i32 x }";
        let files = Memory::new().with("c.thrift", c).with("a.thrift", a).with("b.thrift", b);
        let document = load_with("c.thrift", &Options::default(), &files).expect("a document");
        let error = super::texts(&document).expect_err("no name").to_string();
        assert!(
            error.contains("'s': a value of 'U' is within it: include \"b.thrift\" here, too"),
            "{error}"
        );
    }

    #[test]
    fn what_is_no_value_is_refused_with_its_place() {
        let cases = [
            ("const i32 A = 'x'", 1, 11, "'A': \"x\" is no value of i32"),
            ("\nconst i8 A = 300", 2, 10, "'A': 300 is no value of i8"),
            ("const list<string> A = ['a', 1]", 1, 20, "'A': 1 is no value of string"),
            ("const list<i32> A = {1: 2}", 1, 17, "'A': a map is no value of list<i32>"),
            ("const uuid A = 'x'", 1, 12, "'A': values of uuid cannot be generated: make it in the program"),
            ("struct S { 1: i32 x } const S A = {'y': 1}", 1, 31, "'A': 'S' has no field 'y'"),
            ("struct S { 1: i32 x } const S A = {1: 1}", 1, 31, "'A': a field of 'S' is named by a text"),
            ("struct S { 1: i32 x = true }", 1, 19, "'x': true is no value of i32"),
            ("service S { void f(1: i32 n = 0.5) }", 1, 27, "'n': 0.5 is no value of i32"),
            ("enum E { X } const E A = 7", 1, 22, "'A': 7 is no value of 'E'"),
            ("enum E { X } enum F { Y } const E A = F.Y", 1, 35, "'A': 'Y' is no value of 'E'"),
            (
                "union U { 1: i32 x } const U A = {'y': 1}",
                1,
                30,
                "'A': a value of the union 'U' names one of its fields",
            ),
            (
                "union U { 1: i32 x 2: i32 y } const U A = {'y': 1, 'x': 2}",
                1,
                39,
                "'A': a value of the union 'U' names one of its fields",
            ),
            ("union U { 1: i32 x } const U A = {'x': 's'}", 1, 30, "'A': \"s\" is no value of i32"),
            ("union U { 1: i32 x } const U A = 1", 1, 30, "'A': 1 is no value of 'U'"),
            ("const i32 A = B const i32 B = A", 1, 11, "'A': the constant 'B' is itself within its value"),
            (
                "struct S { 1: optional S s = {} } const S A = {}",
                1,
                26,
                "'s': the default of 's' is itself within it",
            ),
        ];
        for (text, line, column, problem) in cases {
            let error = of(&[("a.thrift", text)]).expect_err(text).to_string();
            assert_eq!(error, format!("a.thrift:{line}:{column}: the value of {problem}"));
        }
    }

    #[test]
    fn what_defaults_come_to_is_bounded() {
        let mut text = "struct S0 { 1: i32 x = 1 }".to_owned();
        for number in 1..40 {
            let before = number - 1;
            let _ = write!(
                text,
                "\nstruct S{number} {{ 1: optional S{before} a = {{}}, 2: optional S{before} b = {{}} }}"
            );
        }
        assert!(of(&[("a.thrift", &text)]).unwrap_err().to_string().contains("more than 65536 values"));
    }
}

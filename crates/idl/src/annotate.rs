//! Rewriting of a file's hints from HatRPC's groups and brackets to Thrift's own annotations, which every
//! Thrift compiler reads. Only the hints change: comments, layout and all other text stay.
//!
//! A bracket behind a function becomes an annotation list in its place, or joins the list that the function
//! has. The groups of a service, which stand before its functions, become annotations behind its closing
//! brace.

use crate::diagnostic::Diagnostics;
use crate::document::File;
use crate::lexer::{self, Kind};
use crate::outline::{self, FunctionOutline, Reader, ServiceOutline};
use crate::source::{Source, Span};
use std::ops::Range;

impl File {
    /// Returns whether the file has hints in groups or brackets, which other Thrift compilers refuse.
    pub fn has_bracket_hints(&self) -> bool {
        self.with_annotations() != *self.text
    }

    /// Returns the file's text with all hints as annotations. A text without other hints is returned as it
    /// is.
    pub fn with_annotations(&self) -> String {
        let source = Source::new("", &self.text);
        // The file has been loaded, so there is nothing to report.
        let mut diagnostics = Diagnostics::default();
        let Some(tokens) = lexer::lex(&source, &mut diagnostics) else { return self.text.to_string() };
        let outline = outline::outline(&source, &tokens, &mut diagnostics);
        let reader = Reader {
            source: &source,
            tokens: &tokens.tokens,
            diagnostics: &mut diagnostics,
            blanks: Vec::new(),
        };
        let mut edits = Edits { reader, all: Vec::new() };
        for service in outline.items.iter().filter_map(|item| item.service.as_ref()) {
            edits.service(service);
            service.functions.iter().for_each(|function| edits.function(function));
        }
        edits.apply()
    }
}

/// Replacements of parts of the text.
struct Edits<'a> {
    reader: Reader<'a>,
    all: Vec<(Span, String)>,
}

impl Edits<'_> {
    fn service(&mut self, service: &ServiceOutline) {
        let (Some(close), false) = (service.close, service.groups.is_empty()) else { return };
        let lists: Vec<String> = service.groups.iter().map(|group| self.converted(group.clone())).collect();
        // Whether only groups stand between the opening brace and the next group.
        let mut leads = true;
        let mut before = None;
        for group in &service.groups {
            let span = self.reader.span(group.clone());
            let text = &self.reader.source.text[..span.start];
            leads &= match before {
                None => text.trim_end().ends_with('{'),
                Some(end) => text[end..].trim().is_empty(),
            };
            before = Some(span.end);
            let span = self.with_line(span, leads);
            self.all.push((span, String::new()));
        }
        self.add(&lists.join(", "), service.annotations, close);
    }

    fn function(&mut self, function: &FunctionOutline) {
        let Some(first) = function.brackets.first() else { return };
        let lists: Vec<String> = function
            .brackets
            .iter()
            .map(|bracket| self.converted(bracket.start + 1..bracket.end - 1))
            .collect();
        let lists: Vec<&str> =
            lists.iter().map(String::as_str).filter(|list| !list.trim().is_empty()).collect();
        // In its place, if an annotation list may stand there.
        if function.brackets.len() == 1
            && function.annotations.is_none()
            && first.start == function.last + 1
            && !lists.is_empty()
        {
            let span = self.reader.span(first.clone());
            self.all.push((span, format!("({})", lists.join(", "))));
            return;
        }
        for bracket in &function.brackets {
            let mut span = self.reader.span(bracket.clone());
            let before = &self.reader.source.text[..span.start];
            span.start = before.trim_end_matches([' ', '\t']).len();
            self.all.push((span, String::new()));
        }
        self.add(&lists.join(", "), function.annotations, function.last);
    }

    /// Adds annotations to the list that opens at the token `list`, or makes one behind the token `behind`.
    fn add(&mut self, annotations: &str, list: Option<usize>, behind: usize) {
        if annotations.trim().is_empty() {
            return;
        }
        let Some(open) = list else {
            let end = self.reader.tokens[behind].span.end;
            self.all.push((end..end, format!(" ({annotations})")));
            return;
        };
        let close = self.reader.behind(open) - 1;
        let last = close - 1;
        let joined = match last {
            last if last == open => "",
            last if self.reader.is(last, b',') || self.reader.is(last, b';') => " ",
            _ => ", ",
        };
        let end = self.reader.tokens[last].span.end;
        self.all.push((end..end, format!("{joined}{annotations}")));
    }

    /// Returns the hints among these tokens as annotations, with the spaces and comments between them.
    fn converted(&self, tokens: Range<usize>) -> String {
        let text = &*self.reader.source.text;
        let span = |index: usize| self.reader.tokens[index].span.clone();
        let (mut out, mut group) = (String::new(), "");
        // The end of the text that is done, and whether spaces after it belong to a removed word.
        let mut done = match tokens.start.checked_sub(1) {
            Some(before) => span(before).end,
            None => 0,
        };
        let mut removed = true;
        let gap = |from: usize, to: usize, removed: bool| {
            let gap = &text[from..to];
            // A line break is layout; spaces after a removed word are not.
            if removed && !gap.contains('\n') { gap.trim_start() } else { gap }
        };
        // A bracket begins behind its opening token, a group at its own name.
        let is_group =
            self.reader.is(tokens.start + 1, b':') && !self.reader.is(tokens.start.wrapping_sub(1), b'[');
        if is_group {
            done = span(tokens.start).start;
        }
        let mut at = tokens.start;
        while at < tokens.end {
            if self.reader.tokens[at].kind == Kind::Word && self.reader.is(at + 1, b':') {
                group = match self.reader.word(at) {
                    "c_hint" => "c_hint.",
                    "s_hint" => "s_hint.",
                    _ => "",
                };
                out.push_str(gap(done, span(at).start, removed));
                (done, removed) = (span(at + 1).end, true);
                at += 2;
                continue;
            }
            let key = at;
            let equals = self.reader.adjacent(key, tokens.end);
            let value = equals + 1;
            let end = self.reader.adjacent(value, tokens.end);
            if equals == key || end == value || end > tokens.end {
                break;
            }
            out.push_str(gap(done, span(key).start, removed));
            out.push_str(group);
            out.push_str(&text[span(key).start..span(value).start]);
            let word = &text[span(value).start..span(end - 1).end];
            match self.reader.tokens[value].kind {
                Kind::Literal => out.push_str(word),
                _ => out.extend(["\"", word, "\""]),
            }
            (done, removed) = (span(end - 1).end, false);
            at = end;
            if at < tokens.end && (self.reader.is(at, b',') || self.reader.is(at, b';')) {
                out.push_str(&text[done..span(at).start]);
                if at + 1 < tokens.end {
                    out.push(',');
                }
                done = span(at).end;
                at += 1;
            }
        }
        let end = match is_group {
            true => done,
            false => self.reader.tokens.get(tokens.end).map_or(done, |close| close.span.start),
        };
        let rest = &text[done.min(end)..end];
        if !rest.trim().is_empty() || rest.contains('\n') {
            out.push_str(rest);
        }
        out
    }

    /// Extends the span of a removed group to its whole line if nothing else is on it, and to an empty line
    /// behind it if it leads the service.
    fn with_line(&self, span: Span, leads: bool) -> Span {
        let text = &*self.reader.source.text;
        let start = text[..span.start].rfind('\n').map_or(0, |newline| newline + 1);
        let end = text[span.end..].find('\n').map(|newline| span.end + newline + 1);
        let alone = text[start..span.start].trim().is_empty();
        let (true, Some(mut end)) =
            (alone && end.is_some_and(|end| text[span.end..end].trim().is_empty()), end)
        else {
            return span;
        };
        let next = text[end..].find('\n').map(|newline| end + newline + 1);
        if let Some(next) = next
            && leads
            && text[end..next].trim().is_empty()
        {
            end = next;
        }
        start..end
    }

    fn apply(mut self) -> String {
        self.all.sort_by_key(|(span, _)| (span.start, span.end));
        let text = &*self.reader.source.text;
        let (mut out, mut done) = (String::with_capacity(text.len() + 64), 0);
        for (span, replacement) in &self.all {
            out.push_str(&text[done..span.start.max(done)]);
            out.push_str(replacement);
            done = span.end.max(done);
        }
        out.push_str(&text[done..]);
        out
    }
}

#[cfg(test)]
mod tests {
    use crate::{Memory, Options, load_with};

    /// Loads a file and returns its text with annotations, after a check that they mean the same.
    fn rewritten(text: &str) -> String {
        let load = |text: &str| {
            let files = Memory::new().with("a.thrift", text);
            load_with("a.thrift", &Options::default(), &files)
                .unwrap_or_else(|wrong| panic!("{wrong}\n{text}"))
        };
        let before = load(text);
        let rewritten = before.files[0].with_annotations();
        let after = load(&rewritten);
        assert_eq!(after.files[0].text.to_string(), after.files[0].with_annotations(), "nothing is left");
        for (one, other) in before.services.iter().zip(&after.services) {
            for (one, other) in one.all_functions().zip(other.all_functions()) {
                assert_eq!(
                    (&one.hints.client, &one.hints.server),
                    (&other.hints.client, &other.hints.server)
                );
                assert_eq!(one.documentation, other.documentation);
            }
        }
        rewritten
    }

    #[test]
    fn brackets_become_lists_in_their_place() {
        for (before, after) in [
            ("[ hint: perf_goal = latency; ]", "(perf_goal = \"latency\")"),
            (
                "[ hint: perf_goal = latency, payload_size = 1KB; c_hint: polling = busy; ]",
                "(perf_goal = \"latency\", payload_size = \"1KB\", c_hint.polling = \"busy\")",
            ),
            ("[hint:payload_size='4B']", "(payload_size='4B')"),
            (
                "[\n  hint: perf_goal = latency; // quick\n  s_hint: polling = busy;\n]",
                "(\n  perf_goal = \"latency\", // quick\n  s_hint.polling = \"busy\"\n)",
            ),
            (
                "[ /* none */ hint: perf_goal = latency /* why */; ]",
                "(/* none */ perf_goal = \"latency\" /* why */)",
            ),
            ("[ ]", ""),
        ] {
            let file = |hints: &str| format!("service S {{\n  i32 f(1: i32 a) {hints}\n}}\n");
            let expected = file(after);
            assert_eq!(rewritten(&file(before)).replace(") \n", ")\n"), expected.replace(") \n", ")\n"));
        }
    }

    #[test]
    fn brackets_elsewhere_join_the_list_of_the_function() {
        for (before, after) in [
            ("i32 f() [ hint: polling = busy; ],", "i32 f() (polling = \"busy\"),"),
            ("i32 f(), [ hint: polling = busy; ]", "i32 f() (polling = \"busy\"),"),
            (
                "i32 f() [ hint: polling = busy; ] throws (1: E e)",
                "i32 f() throws (1: E e) (polling = \"busy\")",
            ),
            (
                "i32 f() (go.tag = \"x\") [ hint: polling = busy; ]",
                "i32 f() (go.tag = \"x\", polling = \"busy\")",
            ),
            (
                "i32 f() (go.tag = \"x\",) [ hint: polling = busy; ]",
                "i32 f() (go.tag = \"x\", polling = \"busy\")",
            ),
            (
                "i32 f() [ hint: polling = busy; ] [ c_hint: payload_size = 4B; ]",
                "i32 f() (polling = \"busy\", c_hint.payload_size = \"4B\")",
            ),
        ] {
            let file =
                |function: &str| format!("exception E {{ 1: i32 a }}\nservice S {{\n  {function}\n}}\n");
            assert_eq!(rewritten(&file(before)), file(after));
        }
    }

    #[test]
    fn groups_of_a_service_go_behind_its_brace() {
        let before = "\
/** Pairs. */
service S { // here
  hint: perf_goal = throughput, concurrency = 64;
  // The client waits.
  c_hint: polling = busy; // always

  /** One. */
  i32 f()
}

service R {
  hint: perf_goal = latency;
  s_hint: polling = busy;

  i32 f()
}
service T { s_hint: polling = event; i32 g() } (a.b = \"c\")
service U extends T { hint: priority = low; } (polling = \"busy\");
";
        let after = "\
/** Pairs. */
service S { // here
  // The client waits.
   // always

  /** One. */
  i32 f()
} (perf_goal = \"throughput\", concurrency = \"64\", c_hint.polling = \"busy\")

service R {
  i32 f()
} (perf_goal = \"latency\", s_hint.polling = \"busy\")
service T {  i32 g() } (a.b = \"c\", s_hint.polling = \"event\")
service U extends T {  } (polling = \"busy\", priority = \"low\");
";
        assert_eq!(rewritten(before), after);
    }

    #[test]
    fn other_text_stays() {
        let text = "# [ hint: polling = busy; ]\nconst list<i32> L = [1, 2]\nservice S {\n  i32 f() (polling = \"busy\")\n}\n";
        assert_eq!(rewritten(text), text);
    }
}

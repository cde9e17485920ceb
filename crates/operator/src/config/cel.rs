//! Evaluates the CEL rules of our CustomResourceDefinitions, so that a file can be checked without an API server.
//!
//! Only the part of CEL that these rules use is implemented. A test parses all of them.

use regex::Regex;
use serde_json::Value;

/// Why a rule has no result: it is not CEL as understood here, or a field that it needs is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unevaluated(String);

type Result<T> = std::result::Result<T, Unevaluated>;

/// Returns whether the rule holds for `this`, which rules call `self`.
pub fn holds(rule: &str, this: &Value) -> Result<bool> {
    let expression = parse(rule)?;
    truth(&evaluate(&expression, &[("self", this)])?)
}

/// Parses a rule without evaluating it.
pub fn parse(rule: &str) -> Result<Expression> {
    let mut parser = Parser { tokens: tokens(rule)?, at: 0 };
    let expression = parser.binary(0)?;
    if parser.at < parser.tokens.len() {
        return Err(Unevaluated(format!("unexpected {:?} in {rule}", parser.tokens[parser.at])));
    }
    Ok(expression)
}

#[derive(Debug)]
pub enum Expression {
    Literal(Value),
    List(Vec<Expression>),
    Name(String),
    Field(Box<Expression>, String),
    Not(Box<Expression>),
    Binary(&'static str, Box<Expression>, Box<Expression>),
    /// A function, or a method whose object is the first argument.
    Call(String, Vec<Expression>),
}

/// Operators by precedence, the weakest first.
const OPERATORS: [&[&str]; 4] = [&["||"], &["&&"], &["==", "!=", "<=", ">=", "<", ">", "in"], &["+"]];

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Word(String),
    Text(String),
    Number(i64),
    Sign(&'static str),
}

const SIGNS: [&str; 16] =
    ["||", "&&", "==", "!=", "<=", ">=", "<", ">", "+", "!", "(", ")", "[", "]", ",", "."];

fn tokens(rule: &str) -> Result<Vec<Token>> {
    let (mut rest, mut tokens) = (rule.trim_start(), Vec::new());
    while let Some(first) = rest.chars().next() {
        let (token, length) = if let Some(sign) = SIGNS.into_iter().find(|sign| rest.starts_with(sign)) {
            (Token::Sign(sign), sign.len())
        } else if let Some(quoted) = rest.strip_prefix('\'') {
            let end = quoted.find('\'').ok_or_else(|| Unevaluated(format!("no end of a text in {rule}")))?;
            if quoted[..end].contains('\\') {
                return Err(Unevaluated(format!("an escape in {rule}")));
            }
            (Token::Text(quoted[..end].to_owned()), end + 2)
        } else {
            let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
            let word = &rest[..end];
            match word.parse() {
                Ok(number) => (Token::Number(number), end),
                Err(_) if end > 0 => (Token::Word(word.to_owned()), end),
                Err(_) => return Err(Unevaluated(format!("unexpected {first:?} in {rule}"))),
            }
        };
        tokens.push(token);
        rest = rest[length..].trim_start();
    }
    Ok(tokens)
}

struct Parser {
    tokens: Vec<Token>,
    at: usize,
}

impl Parser {
    fn next(&mut self) -> Result<Token> {
        let token = self.tokens.get(self.at).cloned();
        self.at += 1;
        token.ok_or_else(|| Unevaluated("the rule ends too early".into()))
    }

    fn takes(&mut self, sign: &str) -> bool {
        let found = match self.tokens.get(self.at) {
            Some(Token::Sign(found)) => *found == sign,
            Some(Token::Word(word)) => word == sign,
            _ => false,
        };
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, sign: &str) -> Result<()> {
        if self.takes(sign) { Ok(()) } else { Err(Unevaluated(format!("{sign:?} is missing"))) }
    }

    fn binary(&mut self, level: usize) -> Result<Expression> {
        let Some(operators) = OPERATORS.get(level) else { return self.unary() };
        let mut left = self.binary(level + 1)?;
        while let Some(operator) = operators.iter().find(|operator| self.takes(operator)) {
            left = Expression::Binary(operator, Box::new(left), Box::new(self.binary(level + 1)?));
        }
        Ok(left)
    }

    fn unary(&mut self) -> Result<Expression> {
        if self.takes("!") {
            return Ok(Expression::Not(Box::new(self.unary()?)));
        }
        let mut expression = self.primary()?;
        while self.takes(".") {
            let Token::Word(name) = self.next()? else {
                return Err(Unevaluated("a field needs a name".into()));
            };
            expression = if self.takes("(") {
                let mut arguments = vec![expression];
                arguments.extend(self.list(")")?);
                Expression::Call(name, arguments)
            } else {
                Expression::Field(Box::new(expression), name)
            };
        }
        Ok(expression)
    }

    fn primary(&mut self) -> Result<Expression> {
        Ok(match self.next()? {
            Token::Text(text) => Expression::Literal(text.into()),
            Token::Number(number) => Expression::Literal(number.into()),
            Token::Sign("[") => Expression::List(self.list("]")?),
            Token::Sign("(") => {
                let inner = self.binary(0)?;
                self.expect(")")?;
                inner
            }
            Token::Word(name) if self.takes("(") => Expression::Call(name, self.list(")")?),
            Token::Word(name) => Expression::Name(name),
            Token::Sign(sign) => return Err(Unevaluated(format!("unexpected {sign:?}"))),
        })
    }

    fn list(&mut self, end: &str) -> Result<Vec<Expression>> {
        let mut items = Vec::new();
        while !self.takes(end) {
            if !items.is_empty() {
                self.expect(",")?;
            }
            items.push(self.binary(0)?);
        }
        Ok(items)
    }
}

fn truth(value: &Value) -> Result<bool> {
    value.as_bool().ok_or_else(|| Unevaluated(format!("{value} is not a boolean")))
}

fn text(value: &Value) -> Result<&str> {
    value.as_str().ok_or_else(|| Unevaluated(format!("{value} is not a text")))
}

fn number(value: &Value) -> Result<i64> {
    value.as_i64().ok_or_else(|| Unevaluated(format!("{value} is not a number")))
}

fn evaluate(expression: &Expression, names: &[(&str, &Value)]) -> Result<Value> {
    let missing = |name: &str| Unevaluated(format!("there is no `{name}`"));
    Ok(match expression {
        Expression::Literal(value) => value.clone(),
        Expression::List(items) => {
            items.iter().map(|item| evaluate(item, names)).collect::<Result<Vec<Value>>>()?.into()
        }
        Expression::Name(name) => {
            let found = names.iter().rev().find(|(known, _)| known == name);
            found.map(|(_, value)| (*value).clone()).ok_or_else(|| missing(name))?
        }
        Expression::Field(of, name) => {
            evaluate(of, names)?.get(name).cloned().ok_or_else(|| missing(name))?
        }
        Expression::Not(of) => (!truth(&evaluate(of, names)?)?).into(),
        Expression::Binary(operator, left, right) => binary(operator, left, right, names)?,
        Expression::Call(name, arguments) => call(name, arguments, names)?,
    })
}

fn binary(operator: &str, left: &Expression, right: &Expression, names: &[(&str, &Value)]) -> Result<Value> {
    let left = evaluate(left, names)?;
    if (operator == "||" && truth(&left)?) || (operator == "&&" && !truth(&left)?) {
        return Ok(left);
    }
    let right = evaluate(right, names)?;
    Ok(match operator {
        "||" | "&&" => truth(&right)?.into(),
        "==" => (left == right).into(),
        "!=" => (left != right).into(),
        "<=" => (number(&left)? <= number(&right)?).into(),
        ">=" => (number(&left)? >= number(&right)?).into(),
        "<" => (number(&left)? < number(&right)?).into(),
        ">" => (number(&left)? > number(&right)?).into(),
        "+" => number(&left)?.saturating_add(number(&right)?).into(),
        "in" => right.as_array().is_some_and(|items| items.contains(&left)).into(),
        _ => return Err(Unevaluated(format!("the operator {operator:?} is not known"))),
    })
}

fn call(name: &str, arguments: &[Expression], names: &[(&str, &Value)]) -> Result<Value> {
    let of = |index: usize| {
        let argument =
            arguments.get(index).ok_or_else(|| Unevaluated(format!("{name}: too few arguments")))?;
        evaluate(argument, names)
    };
    Ok(match name {
        "has" => match arguments {
            [Expression::Field(of, field)] => evaluate(of, names)?.get(field).is_some().into(),
            _ => return Err(Unevaluated("`has` needs a field".into())),
        },
        "size" => match of(0)? {
            Value::Array(items) => items.len().into(),
            Value::Object(fields) => fields.len().into(),
            value => text(&value)?.chars().count().into(),
        },
        "startsWith" => text(&of(0)?)?.starts_with(text(&of(1)?)?).into(),
        "contains" => text(&of(0)?)?.contains(text(&of(1)?)?).into(),
        "matches" => matches(text(&of(1)?)?, text(&of(0)?)?)?.into(),
        "all" | "exists_one" => {
            let [items, Expression::Name(item), condition] = arguments else {
                return Err(Unevaluated(format!("`{name}` needs a name and a condition")));
            };
            let items = evaluate(items, names)?;
            let mut held = 0;
            let items = items.as_array().map_or(&[][..], Vec::as_slice);
            for value in items {
                let names: Vec<(&str, &Value)> =
                    names.iter().copied().chain([(item.as_str(), value)]).collect();
                held += usize::from(truth(&evaluate(condition, &names)?)?);
            }
            (held == if name == "all" { items.len() } else { 1 }).into()
        }
        _ => return Err(Unevaluated(format!("the function `{name}` is not known"))),
    })
}

/// Returns whether a pattern of Go, as CRDs have them, matches somewhere in the text.
pub fn matches(pattern: &str, text: &str) -> Result<bool> {
    let regex = Regex::new(&without_nested_classes(pattern));
    Ok(regex.map_err(|error| Unevaluated(error.to_string()))?.is_match(text))
}

/// In Go `[` has no meaning within `[...]`. Here it would begin a class within the class.
fn without_nested_classes(pattern: &str) -> String {
    let (mut escaped, mut class_start, mut after_backslash) = (String::new(), None, false);
    for (at, c) in pattern.char_indices() {
        let literal = after_backslash;
        after_backslash = c == '\\' && !literal;
        match (c, class_start) {
            ('[', None) if !literal => class_start = Some(at),
            ('[', Some(_)) if !literal => escaped.push('\\'),
            // A bracket that closes nothing yet, as in `[]a]` and `[^]a]`.
            (']', Some(start)) if !literal && matches!(&pattern[start + 1..at], "" | "^") => {
                escaped.push('\\');
            }
            (']', Some(_)) if !literal => class_start = None,
            _ => {}
        }
        escaped.push(c);
    }
    escaped
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn s02_rules_are_evaluated_as_in_cel() {
        let this = json!({"a": 5, "b": "mine/held", "list": [{"k": "x"}, {"k": "y"}], "names": ["a", "b"]});
        for rule in [
            "self.a + 5 < 11 && self.a <= 5 && !(self.a > 5)",
            "!has(self.missing) || self.missing == 'x'",
            "has(self.b) && self.b.startsWith('mine/') && self.b.contains('/')",
            "self.list.all(l, l.k.matches('^[xy]$')) && size(self.list) == 2",
            "self.list.all(l, self.names.all(n, n != l.k))",
            "[has(self.a), has(self.missing)].exists_one(kind, kind)",
            "'b' in self.names && !('c' in ['a', 'b'])",
            "(self.a == 4) == (self.b == 'x')",
            "self.a == 4 && self.b == 'x' || self.a == 5",
        ] {
            assert_eq!(holds(rule, &this), Ok(true), "{rule}");
            assert_eq!(holds(&format!("!({rule})"), &this), Ok(false), "{rule}");
        }
        for rule in [
            "self.missing == 1",
            "self.b",
            "self.a.all(",
            "self.a ? 1 : 2",
            "unknown(self.a)",
            "'a",
            "'\\d' == ''",
        ] {
            assert!(holds(rule, &this).is_err(), "{rule}");
        }
    }

    #[test]
    fn s02_patterns_of_go_are_understood() {
        let ports = "^([^][:/ ]+|[[][0-9A-Fa-f:.]+[]]):[1-9][0-9]{0,4}$";
        for (text, wanted) in [
            ("10.0.0.1:443", true),
            ("[fd00::1]:443", true),
            ("example.com", false),
            ("a[b:1", false),
            ("[x]:1", false),
        ] {
            assert_eq!(matches(ports, text), Ok(wanted), "{text}");
        }
        assert_eq!(matches(r"^\['[^']+'\]$", "['a/b']"), Ok(true));
    }
}

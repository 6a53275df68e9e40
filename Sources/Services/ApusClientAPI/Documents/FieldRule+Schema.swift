import ApusContract
import ApusCore

extension FieldRule {
    /// What the rule says of a value, or of an item of a list, in the words of JSON Schema 2020-12.
    var keywords: [(String, JSON)] {
        var parts: [(String, JSON)] = []
        if let pattern { parts.append(("pattern", .string(pattern))) }
        // JSON Schema has no word for it that constrains; a client may know the format.
        if let jsonFormat {
            parts += [("contentMediaType", .string("application/json")), ("format", .string(jsonFormat))]
        }
        if let range { parts += [("minimum", .int(range.lowerBound)), ("maximum", .int(range.upperBound))] }
        return parts + listKeywords
    }

    /// What the rule says of a list as a whole.
    fileprivate var listKeywords: [(String, JSON)] {
        var parts: [(String, JSON)] = []
        if let itemCount {
            parts += [("minItems", .int(itemCount.lowerBound)), ("maxItems", .int(itemCount.upperBound))]
        }
        if itemsDiffer { parts.append(("uniqueItems", .bool(true))) }
        return parts
    }
}

extension ProtoField {
    /// The schema of the field, with what its rule says.
    func schema(under rule: FieldRule?) -> JSON {
        guard let rule, case .object(let parts) = schema else { return schema }
        if isRepeated {
            let ofItems = rule.keywords.prefix(rule.keywords.count - rule.listKeywords.count)
            return .object(parts.map { $0.0 == "items" ? ($0.0, $0.1.merging(ofItems)) : $0 } + rule.listKeywords)
        }
        // The first value of an enum means that the field is left out.
        let allowed = parts.map { part in
            guard rule.isRequired, part.0 == "enum", case .array(let values) = part.1 else { return part }
            return (part.0, .array(Array(values.dropFirst())))
        }
        return JSON.object(allowed).merging(rule.keywords[...])
    }
}

extension JSON {
    /// The object with more fields, which replace those of their names.
    fileprivate func merging(_ more: ArraySlice<(String, JSON)>) -> JSON {
        guard case .object(let fields) = self else { return self }
        return .object(fields.filter { field in !more.contains { $0.0 == field.0 } } + more)
    }
}

/// The values of a list, ready to be matched.
///
/// Pure value.
struct BoundList: Sendable {
    /// A value as plain text.
    struct Entry: Sendable {
        var leaves: [GrammarLeaf]
        /// The number of the value.
        var value: Int32
    }

    /// A value whose text is a template.
    struct Form: Sendable {
        var node: Int32
        var value: Int32
    }

    enum Kind: Sendable {
        case values
        case range(GrammarRange)
        case wildcard
    }

    var kind: Kind
    var values: [GrammarValue] = []
    /// The plain texts by their first leaf.
    var entries: [GrammarLeaf: [Entry]] = [:]
    var forms: [Form] = []

    var isEmpty: Bool {
        switch kind {
        case .values: values.isEmpty
        case .range, .wildcard: false
        }
    }

    /// A list of the templates.
    init(_ content: GrammarTemplates.List.Content) {
        switch content {
        case .range(let range): kind = .range(range)
        case .wildcard: kind = .wildcard
        case .bound: kind = .values
        case .values(let values):
            kind = .values
            for value in values {
                switch value.text {
                case .leaves(let leaves): add(leaves, value.value)
                case .node(let node):
                    forms.append(Form(node: node, value: Int32(self.values.count)))
                    self.values.append(value.value)
                }
            }
        }
    }

    /// A list of an account.
    init(_ content: GrammarList.Content, _ templates: GrammarTemplates, _ vocabulary: inout GrammarVocabulary) {
        switch content {
        case .range(let range): kind = .range(range)
        case .wildcard: kind = .wildcard
        case .values(let values):
            kind = .values
            for value in values {
                let leaves = vocabulary.leaves(of: value.text, templates.language, templates.normalizer)
                guard (1...GrammarLimits.wordCountMax).contains(leaves.count) else { continue }
                add(leaves, value)
            }
        }
    }

    private mutating func add(_ leaves: [GrammarLeaf], _ value: GrammarValue) {
        entries[leaves[0], default: []].append(Entry(leaves: leaves, value: Int32(values.count)))
        values.append(value)
    }

    /// The values that the blocks of a filter admit.
    func filtered(by filter: GrammarTemplates.Filter) -> BoundList {
        let isAdmitted = values.map(filter.admits)
        guard isAdmitted.contains(false) else { return self }
        var list = self
        var numbers: [Int32?] = []
        list.values = []
        for (value, isAdmitted) in zip(values, isAdmitted) {
            guard isAdmitted else {
                numbers.append(nil)
                continue
            }
            numbers.append(Int32(list.values.count))
            list.values.append(value)
        }
        list.entries = entries.compactMapValues { bucket in
            let kept = bucket.compactMap { entry in
                numbers[Int(entry.value)].map { Entry(leaves: entry.leaves, value: $0) }
            }
            return kept.isEmpty ? nil : kept
        }
        list.forms = forms.compactMap { form in
            numbers[Int(form.value)].map { Form(node: form.node, value: $0) }
        }
        return list
    }

    /// What a value may begin with (``FirstWords``).
    ///
    /// - Parameter firsts: those of the nodes of ``forms``.
    func first(_ firsts: [UInt64]) -> UInt64 {
        switch kind {
        case .range: return FirstWords.number
        case .wildcard: return FirstWords.all
        case .values:
            let plain = entries.keys.reduce(0) { $0 | FirstWords.leaf($1) }
            return forms.reduce(plain) { $0 | firsts[Int($1.node)] }
        }
    }
}

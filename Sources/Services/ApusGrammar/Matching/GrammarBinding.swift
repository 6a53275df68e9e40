/// One way in which a node matches a part of a text: what its slots have.
///
/// Pure value.
struct GrammarBinding: Sendable, Hashable {
    /// A slot, and the part of the text that it has.
    struct Slot: Sendable, Hashable {
        enum Content: Sendable, Hashable {
            /// The numbers of all values that have this text.
            case values([Int32])
            /// A number, in tenths.
            case number(Int)
            case words
        }

        var slot: Int32
        /// The list, as its block sees it.
        var use: Int32
        /// Positions between words.
        var start: Int
        var end: Int
        var content: Content
    }

    var slots: [Slot] = []
    /// The number of words that the sentence itself has.
    var literalCount = 0
    var wildcardCount = 0

    func followed(by other: GrammarBinding) -> GrammarBinding {
        GrammarBinding(
            slots: slots + other.slots, literalCount: literalCount + other.literalCount,
            wildcardCount: wildcardCount + other.wildcardCount)
    }
}

/// Different bindings in the order in which they were found. Of two with the same slots it keeps the one with more
/// literal words.
struct GrammarBindings {
    private(set) var all: [GrammarBinding] = []
    private var indices: [[GrammarBinding.Slot]: Int] = [:]
    /// True if there were more than ``GrammarLimits/bindingCountMax``.
    private(set) var isTruncated = false

    mutating func add(_ binding: GrammarBinding) {
        if let index = indices[binding.slots] {
            if all[index].literalCount < binding.literalCount { all[index] = binding }
            return
        }
        guard all.count < GrammarLimits.bindingCountMax else {
            isTruncated = true
            return
        }
        indices[binding.slots] = all.count
        all.append(binding)
    }
}

/// Finds the bindings of the nodes that a walk has found. They are the bindings of the parts, put together: each way to
/// do so is a step of the walk.
struct GrammarBinder {
    private struct Key: Hashable {
        var node: Int32
        var start: Int
        var end: Int
    }

    var walk: GrammarWalk
    private var known: [Key: [GrammarBinding]] = [:]
    /// True if a node had more than ``GrammarLimits/bindingCountMax`` bindings.
    private(set) var isTruncated = false

    init(_ walk: GrammarWalk) { self.walk = walk }

    private var text: GrammarText { walk.text }

    /// The bindings of a node from one position to another.
    mutating func bindings(of node: Int32, from start: Int, to end: Int) -> [GrammarBinding] {
        let key = Key(node: node, start: start, end: end)
        if let bindings = known[key] { return bindings }
        guard walk.ends(of: node, from: start).has(end) else { return [] }
        var found = GrammarBindings()
        switch walk.tables.templates.nodes[Int(node)] {
        case .word: found.add(GrammarBinding(literalCount: 1))
        case .number(let tenths):
            let literal = text.ends(ofNumber: tenths, from: start)
            literal.forEachPosition { position in
                if text.skips[position].has(end) { found.add(GrammarBinding(literalCount: position - start)) }
            }
        case .list(let use, let slot): addValues(of: use, slot, from: start, to: end, &found)
        case .sequence(let children): addSequences(children, from: start, to: end, &found)
        case .choice(let children):
            for child in children {
                for binding in bindings(of: child, from: start, to: end) { found.add(binding) }
            }
        }
        if found.isTruncated { isTruncated = true }
        known[key] = found.all
        return found.all
    }

    /// The values of a list with the same text are one binding.
    private mutating func addValues(
        of use: Int32, _ slot: Int32, from start: Int, to end: Int, _ found: inout GrammarBindings
    ) {
        var values: [Int: [Int32]] = [:]
        for candidate in walk.candidates(ofList: use, from: start) {
            candidate.ends.forEachPosition { position in
                guard text.skips[position].has(end) else { return }
                var binding = GrammarBinding.Slot(slot: slot, use: use, start: start, end: position, content: .words)
                switch candidate.value {
                case .value(let value):
                    if values[position]?.contains(value) != true { values[position, default: []].append(value) }
                    return
                case .number(let tenths):
                    binding.content = .number(tenths)
                    found.add(GrammarBinding(slots: [binding]))
                case .words: found.add(GrammarBinding(slots: [binding], wildcardCount: position - start))
                }
            }
        }
        for (position, values) in values.sorted(by: { $0.key < $1.key }) {
            let content = GrammarBinding.Slot.Content.values(values.sorted())
            let binding = GrammarBinding.Slot(slot: slot, use: use, start: start, end: position, content: content)
            found.add(GrammarBinding(slots: [binding]))
        }
    }

    private mutating func addSequences(
        _ children: [Int32], from start: Int, to end: Int, _ found: inout GrammarBindings
    ) {
        // The positions in front of each child, from which the children behind it also reach the end.
        var positions = [UInt64(1) << UInt64(start)]
        for child in children { positions.append(walk.ends(of: child, from: positions[positions.count - 1])) }
        positions[children.count] = 1 << UInt64(end)
        for index in children.indices.reversed() {
            var kept = UInt64(0)
            positions[index].forEachPosition { position in
                if walk.ends(of: children[index], from: position) & positions[index + 1] != 0 {
                    kept |= 1 << UInt64(position)
                }
            }
            positions[index] = kept
        }
        guard positions[0] != 0 else { return }
        var partial: [Int: GrammarBindings] = [:]
        partial[start, default: GrammarBindings()].add(GrammarBinding())
        for index in children.indices {
            var next: [Int: GrammarBindings] = [:]
            for (position, bindings) in partial.sorted(by: { $0.key < $1.key }) {
                let ends = walk.ends(of: children[index], from: position) & positions[index + 1]
                ends.forEachPosition { reached in
                    for own in self.bindings(of: children[index], from: position, to: reached) {
                        for binding in bindings.all {
                            guard walk.step() else { return }
                            next[reached, default: GrammarBindings()].add(binding.followed(by: own))
                        }
                    }
                }
            }
            if next.values.contains(where: { $0.isTruncated }) { isTruncated = true }
            partial = next
        }
        for binding in partial[end]?.all ?? [] { found.add(binding) }
    }
}

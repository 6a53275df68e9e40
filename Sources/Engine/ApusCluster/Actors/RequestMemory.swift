import OrderedCollections

/// Identifies one request, so that it is carried out once however often it is sent (D15). It has 16 bytes, which the
/// caller chose at random or derived from the request's cause.
///
/// The upper half of ``low`` may be a digest of what is asked (``init(key:digest:)``): two ids that differ only there
/// are one id that was given to two requests, of which the second is refused.
package struct RequestID: Sendable, Hashable, CustomStringConvertible {
    package let high: UInt64
    package let low: UInt64

    /// The part of an id that names the request, without the digest.
    package struct Key: Sendable, Hashable {
        package let high: UInt64
        package let low: UInt32

        package init(high: UInt64, low: UInt32) { (self.high, self.low) = (high, low) }
    }

    package var key: Key { Key(high: high, low: UInt32(truncatingIfNeeded: low)) }

    /// - Parameter digest: of the request, the same for each repetition.
    package init(key: Key, digest: UInt32) {
        self.init(high: key.high, low: UInt64(digest) << 32 | UInt64(key.low))
    }

    package init(high: UInt64, low: UInt64) {
        self.high = high
        self.low = low
    }

    package init(using generator: inout some RandomNumberGenerator) {
        self.init(high: generator.next(), low: generator.next())
    }

    /// The id of a request that is sent while this one is carried out. It is the same each time this one is carried
    /// out, so a receiver that gets it twice carries it out once.
    ///
    /// - Parameter index: the position among those requests, in the order in which they are sent.
    package func derived(_ index: UInt64) -> RequestID {
        let first = Self.mix(high ^ Self.mix(index))
        return RequestID(high: first, low: Self.mix(low ^ Self.mix(first)))
    }

    /// The finalizer of MurmurHash3: every bit of the result depends on every bit of the number.
    private static func mix(_ number: UInt64) -> UInt64 {
        var mixed = number &+ 0x9e37_79b9_7f4a_7c15
        mixed = (mixed ^ (mixed >> 33)) &* 0xff51_afd7_ed55_8ccd
        mixed = (mixed ^ (mixed >> 33)) &* 0xc4ce_b9fe_1a85_ec53
        return mixed ^ (mixed >> 33)
    }

    package var description: String {
        [high, low].map { number in
            let digits = String(number, radix: 16)
            return String(repeating: "0", count: 16 - digits.count) + digits
        }.joined()
    }
}

/// An entity's stored answers to requests with an id (D15).
///
/// It is part of the entity's state, and moves with it: to the standby, through a planned hand-over, and to the next
/// owner after a death. A repeated request is answered from here and changes nothing.
///
/// **Limits.** Answers are stored up to a count and a number of bytes; the oldest are removed first. A request that is
/// repeated after its answer was removed is carried out again. Callers therefore repeat within seconds, and the limits
/// cover what an entity answers in that time. Of an answer that is longer than the byte limit, only the fact that it
/// was given is stored.
///
/// Pure value: confined to the entity's activation.
package struct RequestMemory: Sendable, Equatable {
    package struct Configuration: Sendable, Equatable {
        /// Requests stored per entity.
        package var countMax = 128
        /// Bytes of stored answers per entity.
        package var byteCountMax = 16 << 10

        package init() {}
    }

    /// The result of a request.
    package enum Answer: Sendable, Equatable {
        case reply([UInt8])
        case failure(code: Int32, message: String)
        /// It was carried out. Its answer was too long to store.
        case notKept

        /// The bytes that count against ``Configuration/byteCountMax``.
        var byteCount: Int {
            switch self {
            case .reply(let bytes): bytes.count
            case .failure(_, let message): message.utf8.count
            case .notKept: 0
            }
        }
    }

    /// The status of a request that arrived.
    package enum Finding: Sendable, Equatable {
        /// It must be carried out.
        case new
        case answered(Answer)
        /// The id was given to another request, whose answer is stored. It must be refused.
        case isOfAnother
    }

    private struct Entry: Sendable, Equatable {
        var id: RequestID
        var answer: Answer
    }

    private let configuration: Configuration
    /// In the order in which they were answered.
    private var answers: OrderedDictionary<RequestID.Key, Entry> = [:]
    private(set) var byteCount = 0

    package init(configuration: Configuration = Configuration()) { self.configuration = configuration }

    /// Restores the answers of a state. Repetitions, and the oldest answers over the limits, are dropped.
    package init(
        configuration: Configuration = Configuration(), carried: some Sequence<(id: RequestID, answer: Answer)>
    ) {
        self.init(configuration: configuration)
        for (id, answer) in carried { remember(id, answer) }
    }

    /// The answers that the state includes, oldest first.
    package var carried: [(id: RequestID, answer: Answer)] { answers.values.map { ($0.id, $0.answer) } }

    package var count: Int { answers.count }

    /// The status of a request that is about to be carried out.
    package func find(_ id: RequestID) -> Finding {
        guard let known = answers[id.key] else { return .new }
        return known.id == id ? .answered(known.answer) : .isOfAnother
    }

    /// A request was carried out. Its answer and its changes are one change of the state.
    package mutating func remember(_ id: RequestID, _ answer: Answer) {
        let kept = answer.byteCount <= configuration.byteCountMax ? answer : .notKept
        if let earlier = answers.removeValue(forKey: id.key) { byteCount -= earlier.answer.byteCount }
        answers[id.key] = Entry(id: id, answer: kept)
        byteCount += kept.byteCount
        while answers.count > configuration.countMax || byteCount > configuration.byteCountMax {
            byteCount -= answers.removeFirst().value.answer.byteCount
        }
    }

    package static func == (left: Self, right: Self) -> Bool { left.answers == right.answers }
}

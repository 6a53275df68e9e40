import OrderedCollections

/// Names one request, so that it is carried out once however often it is sent (D15): 16 bytes that its caller chose at
/// random, or that follow from what caused the request.
package struct RequestID: Sendable, Hashable, CustomStringConvertible {
    package let high: UInt64
    package let low: UInt64

    package init(high: UInt64, low: UInt64) {
        self.high = high
        self.low = low
    }

    package init(using generator: inout some RandomNumberGenerator) {
        self.init(high: generator.next(), low: generator.next())
    }

    /// The id of what is asked while this request is carried out: the same whenever it is carried out again, so that
    /// whoever is asked twice does it once.
    ///
    /// - Parameter index: which of the requests, in the order in which they are made.
    package func derived(_ index: UInt64) -> RequestID {
        let first = Self.mix(high ^ Self.mix(index))
        return RequestID(high: first, low: Self.mix(low ^ Self.mix(first)))
    }

    /// Every bit of the result depends on every bit of the number: the finalizer of MurmurHash3.
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

/// What an entity answered to requests that carry an id (D15).
///
/// It is part of the entity's state and goes where that goes: to the standby, through a planned hand-over, to the owner
/// after a death. A repeated request is answered from here and changes nothing.
///
/// **Bounds.** Answers are kept up to a count and a number of bytes, the oldest leave first. A request that is repeated
/// after its answer left is carried out again, so callers repeat within seconds, and the bounds hold what an entity
/// answers in that time. An answer that alone is over the bound is not kept, only that it was given.
///
/// Pure: confined to the entity's activation.
package struct RequestMemory: Sendable, Equatable {
    package struct Configuration: Sendable, Equatable {
        /// Requests remembered per entity.
        package var countMax = 128
        /// Bytes of their answers per entity.
        package var byteCountMax = 16 << 10

        package init() {}
    }

    /// What became of a request.
    package enum Answer: Sendable, Equatable {
        case reply([UInt8])
        case failure(code: Int32, message: String)
        /// It was carried out, and its answer was too long to keep.
        case notKept

        /// What it counts against ``Configuration/byteCountMax``.
        var byteCount: Int {
            switch self {
            case .reply(let bytes): bytes.count
            case .failure(_, let message): message.utf8.count
            case .notKept: 0
            }
        }
    }

    /// What is known of a request that came.
    package enum Finding: Sendable, Equatable {
        /// It is to be carried out; ``end(_:_:)`` follows.
        case new
        /// It is being carried out. Its answer is the repetition's as well.
        case underWay
        case answered(Answer)
    }

    private let configuration: Configuration
    /// In the order in which they were answered.
    private var answers: OrderedDictionary<RequestID, Answer> = [:]
    private var underWay: Set<RequestID> = []
    private(set) var byteCount = 0

    package init(configuration: Configuration = Configuration()) { self.configuration = configuration }

    /// As a state carried them; more than the bounds allow, and repetitions, are left out from the front.
    package init(
        configuration: Configuration = Configuration(), carried: some Sequence<(id: RequestID, answer: Answer)>
    ) {
        self.init(configuration: configuration)
        for (id, answer) in carried { remember(id, answer) }
    }

    /// What a state carries, oldest first. Requests under way are not in it: their changes are not in the state either.
    package var carried: [(id: RequestID, answer: Answer)] { answers.map { ($0.key, $0.value) } }

    package var count: Int { answers.count }

    /// A request came.
    package mutating func begin(_ id: RequestID) -> Finding {
        if let answer = answers[id] { return .answered(answer) }
        return underWay.insert(id).inserted ? .new : .underWay
    }

    /// A request was carried out. Its answer and its changes are one change of the state.
    package mutating func end(_ id: RequestID, _ answer: Answer) {
        underWay.remove(id)
        remember(id, answer)
    }

    /// A request was not carried out after all, and changed nothing: it may come again.
    package mutating func giveUp(_ id: RequestID) { underWay.remove(id) }

    private mutating func remember(_ id: RequestID, _ answer: Answer) {
        let kept = answer.byteCount <= configuration.byteCountMax ? answer : .notKept
        if let earlier = answers.removeValue(forKey: id) { byteCount -= earlier.byteCount }
        answers[id] = kept
        byteCount += kept.byteCount
        while answers.count > configuration.countMax || byteCount > configuration.byteCountMax {
            byteCount -= answers.removeFirst().value.byteCount
        }
    }

    package static func == (left: Self, right: Self) -> Bool {
        left.answers == right.answers && left.underWay == right.underWay
    }
}

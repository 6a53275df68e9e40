import ApusCore
import ApusHistory

/// Concurrent clients of real registers, in simulated time: each operation takes effect at one moment between its
/// invocation and its return, or later if its outcome is unknown. With a fault the registers are wrong.
struct RegisterSimulation {
    /// What the registers do wrong.
    enum Fault: CaseIterable {
        /// Some reads find the value of three writes ago.
        case staleReads
        /// Some changes are acknowledged and not made.
        case lostChanges
        /// For a while, clients with odd numbers use registers of their own, whose changes are then lost.
        case splitBrain
        /// Some changes are made a second time, later.
        case repeatedChanges
    }

    struct Options {
        var clients = 5
        var operationsPerClient = 40
        var entities = 2
        /// The share of changes whose outcome stays unknown.
        var unknownShare = 0.1
        /// The share of changes that certainly fail.
        var failedShare = 0.02
        var fault: Fault?
        /// The share of operations that a fault concerns.
        var faultShare = 0.05
    }

    private enum Moment {
        case invocation, effect, end
        /// A second effect of the same change.
        case repetition
    }

    private struct Event {
        var at: UInt64
        var number: Int
        var moment: Moment
        var operation: Int
    }

    private let options: Options
    private var random: SeededRandom
    private var operations: [RegisterOperation] = []
    private var events: [Event] = []
    private var eventCount = 0
    /// Operations whose clients wait for the outcome.
    private var waiting: Set<Int> = []
    private var started: [Int]
    /// The values of each register, by its name and whether it is the wrong half of a split: the last is the newest.
    private var values: [String: [UInt64]] = [:]
    /// What each client has last seen of each register.
    private var known: [String: UInt64] = [:]
    private var nextValue: UInt64 = 1
    private var splitFrom: UInt64 = 0
    private var splitUntil: UInt64 = 0

    static func run(seed: UInt64, options: Options = Options()) -> [RegisterOperation] {
        var simulation = RegisterSimulation(seed: seed, options: options)
        simulation.run()
        return simulation.operations
    }

    private init(seed: UInt64, options: Options) {
        self.options = options
        random = SeededRandom(seed: seed)
        started = Array(repeating: 0, count: options.clients)
    }

    private mutating func run() {
        let span = UInt64(options.operationsPerClient) * 200
        if options.fault == .splitBrain { (splitFrom, splitUntil) = (span / 3, span * 2 / 3) }
        for client in 0..<options.clients { add(delay(100), .invocation, client) }
        while let event = nextEvent() {
            switch event.moment {
            case .invocation: invoke(client: event.operation, at: event.at)
            case .effect: take(event.operation, at: event.at)
            case .repetition: _ = apply(event.operation, at: event.at)
            case .end: end(event.operation, at: event.at)
            }
        }
        let last = (operations.compactMap(\.returnedAt?.nanoseconds).max() ?? 0) + 100_000
        for number in 0..<options.entities { readAtTheEnd("r-\(number)", at: last) }
    }

    private mutating func nextEvent() -> Event? {
        let first = events.indices.min { (events[$0].at, events[$0].number) < (events[$1].at, events[$1].number) }
        return first.map { events.remove(at: $0) }
    }

    private mutating func readAtTheEnd(_ entity: String, at time: UInt64) {
        operations.append(
            RegisterOperation(
                client: options.clients, entity: entity, request: .read, invokedAt: MonotonicTime(nanoseconds: time),
                returnedAt: MonotonicTime(nanoseconds: time + 1), outcome: .value(values[entity]?.last ?? 0)))
    }

    private mutating func add(_ at: UInt64, _ moment: Moment, _ operation: Int) {
        eventCount += 1
        events.append(Event(at: at, number: eventCount, moment: moment, operation: operation))
    }

    private mutating func delay(_ max: UInt64) -> UInt64 { random.next() % max + 1 }

    private mutating func invoke(client: Int, at time: UInt64) {
        guard started[client] < options.operationsPerClient else { return }
        started[client] += 1
        let entity = "r-\(random.next() % UInt64(options.entities))"
        let kind = random.nextUnit()
        let request: RegisterOperation.Request
        if kind < 0.5 {
            request = .read
        } else {
            request =
                kind < 0.75
                ? .write(nextValue)
                : .compareAndSwap(expected: known["\(client) \(entity)"] ?? 0, new: nextValue)
            nextValue += 1
        }
        operations.append(
            RegisterOperation(
                client: client, entity: entity, request: request, invokedAt: MonotonicTime(nanoseconds: time)))
        let index = operations.count - 1
        let isUnknown = random.nextUnit() < options.unknownShare
        let isFailed = request != .read && random.nextUnit() < options.failedShare
        if isFailed {
            operations[index].outcome = .failed
        } else if isUnknown {
            // Soon, much later, or never.
            if random.nextUnit() < 0.7 { add(time + delay(random.nextUnit() < 0.5 ? 100 : 3_000), .effect, index) }
        } else {
            waiting.insert(index)
            add(time + delay(100), .effect, index)
            return
        }
        let end = time + delay(200)
        operations[index].returnedAt = isFailed ? MonotonicTime(nanoseconds: end) : nil
        add(end + delay(50), .invocation, client)
    }

    /// The register that an operation reaches at a time.
    private mutating func register(of operation: RegisterOperation, at time: UInt64) -> String {
        guard time >= splitFrom, time < splitUntil, operation.client % 2 == 1 else { return operation.entity }
        let other = operation.entity + " of the other half"
        if values[other] == nil { values[other] = values[operation.entity] ?? [] }
        return other
    }

    private mutating func apply(_ index: Int, at time: UInt64) -> RegisterOperation.Outcome {
        let operation = operations[index]
        let register = register(of: operation, at: time)
        let value = values[register]?.last ?? RegisterOperation.initialValue
        switch operation.request {
        case .read: return .value(value)
        case .write(let new):
            values[register, default: []].append(new)
            return .ok
        case .compareAndSwap(let expected, let new):
            guard value == expected else { return .mismatch(value) }
            values[register, default: []].append(new)
            return .ok
        }
    }

    private mutating func take(_ index: Int, at time: UInt64) {
        let operation = operations[index]
        let isWrong = random.nextUnit() < options.faultShare
        let outcome: RegisterOperation.Outcome
        switch (options.fault, operation.request) {
        case (.staleReads?, .read) where isWrong:
            outcome = .value(values[operation.entity]?.dropLast(3).last ?? RegisterOperation.initialValue)
        case (.lostChanges?, .write) where isWrong: outcome = .ok
        case (.repeatedChanges?, .write) where isWrong:
            outcome = apply(index, at: time)
            add(time + 500, .repetition, index)
        default: outcome = apply(index, at: time)
        }
        // Without a client that waits, the outcome stays unknown.
        guard waiting.remove(index) != nil else { return }
        operations[index].outcome = outcome
        add(time + delay(100), .end, index)
    }

    private mutating func end(_ index: Int, at time: UInt64) {
        let operation = operations[index]
        operations[index].returnedAt = MonotonicTime(nanoseconds: time)
        let key = "\(operation.client) \(operation.entity)"
        switch (operation.request, operation.outcome) {
        case (_, .value(let value)), (_, .mismatch(let value)): known[key] = value
        case (.write(let value), _), (.compareAndSwap(_, let value), _): known[key] = value
        default: break
        }
        add(time + delay(50), .invocation, operation.client)
    }
}

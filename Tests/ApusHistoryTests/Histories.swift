import ApusCore
import ApusHistory
import Synchronization

/// A history that is written by hand: each operation with the milliseconds of its invocation and its return.
struct HandWritten {
    private(set) var operations: [RegisterOperation] = []

    /// Adds an operation; `end` nil leaves the outcome unknown.
    mutating func add(
        _ client: Int, _ start: UInt64, _ end: UInt64?, _ request: RegisterOperation.Request,
        _ outcome: RegisterOperation.Outcome = .unknown, entity: String = "r"
    ) {
        operations.append(
            RegisterOperation(
                client: client, entity: entity, request: request, invokedAt: .milliseconds(start),
                returnedAt: end.map { .milliseconds($0) }, outcome: outcome))
    }

    static func make(_ body: (inout HandWritten) -> Void) -> [RegisterOperation] {
        var history = HandWritten()
        body(&history)
        return history.operations
    }
}

extension MonotonicTime {
    static func milliseconds(_ count: UInt64) -> Self { Self(nanoseconds: count * 1_000_000) }
}

extension LinearizabilityChecker {
    /// The violation of a history; nil if there is none or the check is undecided.
    func violation(_ operations: [RegisterOperation]) -> LinearizabilityViolation? {
        guard case .violation(let violation) = check(operations) else { return nil }
        return violation
    }
}

/// Checks a short history of one register by trying every order: the definition, without any rule of the checker.
enum EveryOrder {
    static func isLinearizable(_ operations: [RegisterOperation]) -> Bool {
        let relevant = operations.filter { $0.outcome != .failed }
        return explains(relevant, RegisterOperation.initialValue)
    }

    private static func explains(_ left: [RegisterOperation], _ value: UInt64) -> Bool {
        if left.allSatisfy({ $0.outcome == .unknown }) { return true }
        let firstEnd = left.compactMap { $0.outcome == .unknown ? nil : $0.returnedAt }.min()
        for (index, operation) in left.enumerated() {
            if let firstEnd, operation.invokedAt > firstEnd { continue }
            guard let after = result(operation, value) else { continue }
            var rest = left
            rest.remove(at: index)
            if explains(rest, after) { return true }
        }
        return false
    }

    /// The value after an operation; nil if its outcome is not that of a register with this value.
    private static func result(_ operation: RegisterOperation, _ value: UInt64) -> UInt64? {
        switch (operation.request, operation.outcome) {
        case (.read, .unknown): return value
        case (.read, .value(let found)): return found == value ? value : nil
        case (.write(let new), _): return new
        case (.compareAndSwap(let expected, let new), .ok): return value == expected ? new : nil
        case (.compareAndSwap(let expected, let new), .unknown): return value == expected ? new : value
        case (.compareAndSwap(let expected, _), .mismatch(let found)):
            return found == value && found != expected ? value : nil
        default: return nil
        }
    }
}

/// A register behind a lock. Isolation: any thread.
final class LockedRegister: Sendable {
    private let locked = Mutex(RegisterOperation.initialValue)

    var value: UInt64 {
        get { locked.withLock { $0 } }
        set { locked.withLock { $0 = newValue } }
    }
}

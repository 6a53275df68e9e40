package import ApusCore

/// Waits until a condition holds, for at most thirty seconds, polling every 2 ms.
///
/// It does not test how long something takes; a test of that measures it. On an overloaded machine the test itself may
/// not run for seconds, so the condition is checked once more after the time.
///
/// - Throws: 10005 with the description of the condition; the errors of the condition.
package func eventually(_ what: String, _ condition: () async throws -> Bool) async throws {
    let deadline = MonotonicTime.now() + .seconds(30)
    while MonotonicTime.now() < deadline {
        if try await condition() { return }
        try await Task.sleep(for: .milliseconds(2))
    }
    if try await condition() { return }
    throw ApusError(.deadlineExceeded, "the condition was not reached in time: \(what)")
}

/// The number of a call's failure; nil if it succeeded.
package func code(_ body: () async throws -> Void) async -> ErrorCode? {
    do {
        try await body()
        return nil
    } catch let error as ApusError {
        return error.code
    } catch {
        return .internalFailure
    }
}

package import ApusCore

/// Waits until something holds, at most thirty seconds, looking every 2 ms.
///
/// It says nothing of how long a thing may take: a test of that measures it. On a machine that is full of processes the
/// test itself may not run for seconds, so there is a last look after the time.
///
/// - Throws: 10005 with the words of what never came; what the condition throws.
package func eventually(_ what: String, _ condition: () async throws -> Bool) async throws {
    let deadline = MonotonicTime.now() + .seconds(30)
    while MonotonicTime.now() < deadline {
        if try await condition() { return }
        try await Task.sleep(for: .milliseconds(2))
    }
    if try await condition() { return }
    throw ApusError(.deadlineExceeded, "it never came to pass that \(what)")
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

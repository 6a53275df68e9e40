package import ApusCore
import CApusPQ

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// Why a statement or a connection failed.
package struct PostgresFailure: Error, Sendable {
    /// The server's code (SQLSTATE); empty if the connection failed.
    package var state: String
    /// The message of libpq or the server. It contains no password.
    package var message: String
    /// True if the connection can no longer be used.
    package var isConnectionLost: Bool

    package init(state: String, message: String, isConnectionLost: Bool) {
        (self.state, self.message, self.isConnectionLost) = (state, message, isConnectionLost)
    }
}

/// The result of one statement: rows of texts, in the server's format; nil is NULL.
package struct PostgresResult: Sendable {
    package var rows: [[String?]]
    /// Rows that the statement changed.
    package var changedCount: Int
}

/// One connection to a PostgreSQL server, over libpq in its non-blocking mode.
///
/// Every call has a deadline on the client's side. If the server is stopped, or the network drops packets, the call
/// ends with ``PostgresFailure/isConnectionLost``. Such a connection is discarded, since the outcome at the server is
/// unknown.
///
/// Concurrency model: one thread at a time, which may block. Its owner guards it with a `Mutex`.
package final class PostgresConnection: @unchecked Sendable {  // SAFETY: libpq takes one thread at a time; see above.
    private let handle: OpaquePointer

    /// Connects.
    ///
    /// - Parameter url: A URL or keywords in libpq's format (`postgresql://USER@HOST:PORT/NAME?sslmode=verify-full`).
    package init(url: String, until deadline: MonotonicTime) throws(PostgresFailure) {
        guard let handle = PQconnectStart(url) else {
            throw PostgresFailure(state: "", message: "no memory", isConnectionLost: true)
        }
        self.handle = handle
        var wants = Int16(POLLOUT)
        while true {
            guard PQstatus(handle) != CONNECTION_BAD else { throw failure() }
            try wait(for: wants, until: deadline)
            switch PQconnectPoll(handle) {
            case PGRES_POLLING_OK:
                guard PQsetnonblocking(handle, 1) == 0 else { throw failure() }
                return
            case PGRES_POLLING_READING: wants = Int16(POLLIN)
            case PGRES_POLLING_WRITING: wants = Int16(POLLOUT)
            default: throw failure()
            }
        }
    }

    deinit { PQfinish(handle) }

    /// Runs one statement.
    @discardableResult
    package func run(
        _ sql: String, _ parameters: [String?] = [], until deadline: MonotonicTime
    ) throws(PostgresFailure) -> PostgresResult {
        try send(sql, parameters)
        try flush(until: deadline)
        var result: PostgresResult?
        var refusal: PostgresFailure?
        while true {
            while PQisBusy(handle) != 0 {
                try wait(for: Int16(POLLIN), until: deadline)
                guard PQconsumeInput(handle) == 1 else { throw failure() }
            }
            guard let answer = PQgetResult(handle) else { break }
            defer { PQclear(answer) }
            switch PQresultStatus(answer) {
            case PGRES_COMMAND_OK, PGRES_TUPLES_OK: result = Self.result(answer)
            default: refusal = refusal ?? failure(of: answer)
            }
        }
        if let refusal { throw refusal }
        guard let result else { throw failure() }
        return result
    }

    private func send(_ sql: String, _ parameters: [String?]) throws(PostgresFailure) {
        let copies = parameters.map { $0.flatMap { strdup($0) } }
        defer { for copy in copies { free(copy) } }
        let values = copies.map { $0.map { UnsafePointer<CChar>($0) } }
        guard PQsendQueryParams(handle, sql, Int32(values.count), nil, values, nil, nil, 0) == 1 else {
            throw failure()
        }
    }

    private func flush(until deadline: MonotonicTime) throws(PostgresFailure) {
        while true {
            switch PQflush(handle) {
            case 0: return
            case 1:
                // Waits for both: a server that cannot send its answer does not read either.
                try wait(for: Int16(POLLOUT | POLLIN), until: deadline)
                guard PQconsumeInput(handle) == 1 else { throw failure() }
            default: throw failure()
            }
        }
    }

    private func wait(for events: Int16, until deadline: MonotonicTime) throws(PostgresFailure) {
        while true {
            let rest = (deadline - .now()).nanoseconds / 1_000_000
            guard rest > 0 else {
                throw PostgresFailure(state: "", message: "the server does not answer", isConnectionLost: true)
            }
            var entry = pollfd(fd: PQsocket(handle), events: events, revents: 0)
            let count = poll(&entry, 1, Int32(clamping: rest))
            if count > 0 { return }
            guard count == 0 || errno == EINTR else { throw failure() }
        }
    }

    private func failure() -> PostgresFailure {
        PostgresFailure(state: "", message: Self.text(PQerrorMessage(handle)), isConnectionLost: true)
    }

    private func failure(of answer: OpaquePointer) -> PostgresFailure {
        let state = PQresultErrorField(answer, Int32(UInt8(ascii: "C"))).map { String(cString: $0) } ?? ""
        return PostgresFailure(
            state: state, message: Self.text(PQresultErrorMessage(answer)),
            isConnectionLost: PQstatus(handle) != CONNECTION_OK)
    }

    private static func result(_ answer: OpaquePointer) -> PostgresResult {
        let (rowCount, columnCount) = (PQntuples(answer), PQnfields(answer))
        var rows: [[String?]] = []
        rows.reserveCapacity(Int(rowCount))
        for row in 0..<rowCount {
            rows.append(
                (0..<columnCount).map { column in
                    guard PQgetisnull(answer, row, column) == 0 else { return nil }
                    return PQgetvalue(answer, row, column).map { String(cString: $0) }
                })
        }
        return PostgresResult(rows: rows, changedCount: Int(Self.text(PQcmdTuples(answer))) ?? 0)
    }

    /// libpq's messages end with a newline, and may have several lines.
    private static func text(_ pointer: UnsafePointer<CChar>?) -> String {
        guard let pointer else { return "" }
        return String(cString: pointer).split(separator: "\n").joined(separator: " ")
    }

    private static func text(_ pointer: UnsafeMutablePointer<CChar>?) -> String {
        text(pointer.map { UnsafePointer($0) })
    }
}

import ApusCore
import ApusThreads
import CApusCurl
import Synchronization

/// Runs the transfers of one client on a thread of its own.
///
/// Concurrency model: the functions above ``run()`` may be called from any thread. A `Mutex` guards what they leave for
/// the thread. The thread alone uses libcurl's handles, except for `curl_multi_wakeup`, which any thread may call
/// until the handle is released.
final class TransferLoop: Sendable {
    private enum Command {
        case begin(HTTPTransfer)
        case cancel(HTTPTransfer)
        case resume(HTTPTransfer)
    }

    private struct State {
        var commands: [Command] = []
        /// Transfers that have begun and not ended.
        var count = 0
        var isStopped = false
        /// The thread has released its handle.
        var hasEnded = false
        var waiters: [CheckedContinuation<Void, Never>] = []
    }

    /// The thread looks at its commands at least this often, in milliseconds. They wake it up besides.
    private static let pollTimeout: Int32 = 60_000
    private static let isReady = apus_curl_global_init() == CURLE_OK

    private let settings: HTTPClient.Settings
    private nonisolated(unsafe) let multi: OpaquePointer  // SAFETY: see the concurrency model.
    private let state = Mutex(State())

    init(_ settings: HTTPClient.Settings) throws(ApusError) {
        guard Self.isReady, let multi = curl_multi_init() else {
            throw ApusError(.internalFailure, "libcurl cannot be initialized")
        }
        (self.settings, self.multi) = (settings, multi)
        for (option, value) in [
            (CURLMOPT_MAX_HOST_CONNECTIONS, settings.version == .http2 ? 1 : settings.connectionsPerHostMax),
            (CURLMOPT_MAX_TOTAL_CONNECTIONS, settings.connectionsMax), (CURLMOPT_MAXCONNECTS, settings.connectionsMax),
            (CURLMOPT_MAX_CONCURRENT_STREAMS, settings.transfersMax),
        ] {
            apus_curl_multi_set_number(multi, option, value)
        }
    }

    deinit { if !state.withLock({ $0.hasEnded }) { curl_multi_cleanup(multi) } }

    // MARK: From any thread

    /// Starts the thread, which keeps this object until ``stop()``.
    func start() throws(ApusError) {
        _ = try OSThread(name: "apus-http-out") { self.run() }
    }

    func stop() {
        state.withLock { state in
            state.isStopped = true
            wake(state)
        }
    }

    /// Waits until the thread has ended.
    func ended() async {
        await withCheckedContinuation { continuation in
            let hasEnded = state.withLock { state in
                if !state.hasEnded { state.waiters.append(continuation) }
                return state.hasEnded
            }
            if hasEnded { continuation.resume() }
        }
    }

    /// - Throws: 21031, 10007, 10008: see ``HTTPClient/send(_:)``.
    func begin(_ transfer: HTTPTransfer) throws(ApusError) {
        try transfer.request.check()
        try state.withLock { state throws(ApusError) in
            guard !state.isStopped else { throw ApusError(.linkLost, "the client is closed") }
            guard state.count < settings.transfersMax else {
                throw ApusError(.overloaded, "\(settings.transfersMax) requests are in progress")
            }
            state.count += 1
            state.commands.append(.begin(transfer))
            wake(state)
        }
    }

    /// Waits for a part of the answer or its end. The task's cancellation ends the transfer.
    func wait(for wait: HTTPTransfer.Wait, of transfer: HTTPTransfer) async {
        await withTaskCancellationHandler {
            await withCheckedContinuation { transfer.set($0, for: wait) }
        } onCancel: {
            cancel(transfer)
        }
    }

    /// Ends a transfer with 10006, unless it has ended.
    func cancel(_ transfer: HTTPTransfer) {
        guard !transfer.hasEnded else { return }
        transfer.end(.failure(ApusError(.cancelled)))
        post(.cancel(transfer))
    }

    /// Continues a transfer that was paused.
    func resume(_ transfer: HTTPTransfer) { post(.resume(transfer)) }

    private func post(_ command: Command) {
        state.withLock { state in
            state.commands.append(command)
            wake(state)
        }
    }

    private func wake(_ state: State) {
        if !state.hasEnded { curl_multi_wakeup(multi) }
    }

    // MARK: The thread

    private func run() {
        var handles: [OpaquePointer: TransferHandle] = [:]
        var hasConnection = false
        while true {
            let (commands, isStopped) = state.withLock { state in
                defer { state.commands = [] }
                return (state.commands, state.isStopped)
            }
            for command in commands { carryOut(command, hasConnection, &handles) }
            guard !isStopped else { break }
            var (runningCount, result, isActive) = (Int32(0), CURLE_OK, false)
            curl_multi_perform(multi, &runningCount)
            while let easy = apus_curl_multi_ended(multi, &result) {
                isActive = true
                guard let handle = handles[easy] else { continue }
                remove(handle, &handles)
                if result == CURLE_OK { hasConnection = true }
                handle.end(result)
            }
            for handle in handles.values where handle.hasReceived {
                handle.hasReceived = false
                isActive = true
            }
            // Frames of HTTP/2 that libcurl before 8.0 has read may wait for its next turn. It would poll for more.
            curl_multi_poll(multi, nil, 0, isActive ? 0 : Self.pollTimeout, nil)
        }
        for handle in Array(handles.values) {
            remove(handle, &handles)
            handle.transfer.end(.failure(ApusError(.linkLost, "the client was closed")))
        }
        let waiters = state.withLock { state in
            curl_multi_cleanup(multi)
            state.hasEnded = true
            defer { state.waiters = [] }
            return state.waiters
        }
        for waiter in waiters { waiter.resume() }
    }

    private func carryOut(
        _ command: Command, _ hasConnection: Bool, _ handles: inout [OpaquePointer: TransferHandle]
    ) {
        switch command {
        case .begin(let transfer):
            do throws(ApusError) {
                let handle = try TransferHandle(transfer, settings, hasConnection: hasConnection)
                guard curl_multi_add_handle(multi, handle.easy) == CURLM_OK else {
                    throw ApusError(.internalFailure, "libcurl takes no transfer")
                }
                handles[handle.easy] = handle
            } catch {
                state.withLock { $0.count -= 1 }
                transfer.end(.failure(error))
            }
        case .cancel(let transfer):
            if let handle = Self.handle(of: transfer, handles) { remove(handle, &handles) }
        case .resume(let transfer):
            if let handle = Self.handle(of: transfer, handles) { _ = apus_curl_continue(handle.easy) }
        }
    }

    private static func handle(
        of transfer: HTTPTransfer, _ handles: [OpaquePointer: TransferHandle]
    ) -> TransferHandle? {
        handles.values.first { $0.transfer === transfer }
    }

    private func remove(_ handle: TransferHandle, _ handles: inout [OpaquePointer: TransferHandle]) {
        curl_multi_remove_handle(multi, handle.easy)
        handles[handle.easy] = nil
        state.withLock { $0.count -= 1 }
    }
}

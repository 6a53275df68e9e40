import ApusCore
import ApusHTTPClient
import CoreMetrics
import Foundation
import Logging
import ServiceLifecycle
import Synchronization

/// Asks the language model of a node, over chat completions (docs/voice.md). Nothing is sent twice, and redirects are
/// not followed.
///
/// Concurrency model: any task. A `Mutex` guards the state machine.
final class GuestModel: Service {
    /// What remains of the time of a sentence after the model was asked.
    private static let reserve = Duration.milliseconds(700)
    /// With less time the model is not asked.
    private static let timeMin = Duration.milliseconds(100)

    let configuration: GuestConfiguration
    private let key: String?
    private let log: Logger
    private let client = Mutex<HTTPClient?>(nil)
    private let machine: Mutex<GuestStateMachine>
    private let answered = total("answered")
    private let failed = total("failed")
    private let late = total("late")
    private let full = total("full")
    private let paused = total("paused")
    private let runningGauge = Gauge(label: "apus_dialog_model_requests_running")

    private static func total(_ result: String) -> Counter {
        Counter(label: "apus_dialog_model_requests_total", dimensions: [("result", result)])
    }

    /// Nil without `dialogs.model_url`.
    ///
    /// - Throws: 10022 if the file of the key cannot be read, or has no key.
    init?(_ configuration: GuestConfiguration, log: Logger) throws(ApusError) {
        guard !configuration.url.isEmpty else { return nil }
        (self.configuration, self.log) = (configuration, log)
        key = try Self.key(configuration.keyFile)
        machine = Mutex(GuestStateMachine(runningMax: configuration.runningMax))
    }

    private static func key(_ file: String) throws(ApusError) -> String? {
        guard !file.isEmpty else { return nil }
        let text = (try? String(contentsOfFile: file, encoding: .utf8)) ?? ""
        let line = text.split(whereSeparator: \.isNewline).first.map { String($0) } ?? ""
        guard (1...GuestConfiguration.keyByteCountMax).contains(line.utf8.count),
            line.utf8.allSatisfy({ (0x21...0x7e).contains($0) })
        else { throw ApusError(.configurationInvalid, "dialogs.model_key_file: \(file) has no key in its first line") }
        return line
    }

    func run() async throws {
        var settings = HTTPClient.Settings()
        settings.authorityFile = configuration.authorityFile.isEmpty ? nil : configuration.authorityFile
        settings.connectTimeout = configuration.time / 2
        settings.connectionsPerHostMax = configuration.runningMax
        // One that has ended late may still be there.
        settings.transfersMax = 2 * configuration.runningMax
        // Servers close idle connections when they like, and an answer takes longer than a connection.
        settings.keepsConnections = false
        let client = try HTTPClient(settings)
        self.client.withLock { $0 = client }
        try? await gracefulShutdown()
        self.client.withLock { $0 = nil }
        await client.shutdown()
    }

    /// Asks about a sentence of an account. Never throws: without an answer the sentence is not understood.
    ///
    /// - Parameter end: the end of the time of the sentence.
    func answer(_ prompt: GuestPrompt, of account: AccountID, until end: MonotonicTime) async -> GuestAnswer {
        let time = min(configuration.time, end - .now() - Self.reserve)
        guard time >= Self.timeMin, let client = client.withLock(\.self) else { return .nothing }
        switch changed({ $0.admit(account, at: .now()) }) {
        case .ask: break
        case .full:
            full.increment()
            return .nothing
        case .paused:
            paused.increment()
            return .nothing
        }
        do throws(ApusError) {
            let answer = try await ask(client, prompt, time)
            changed { $0.ended(of: account, .answered, at: .now()) }
            answered.increment()
            return answer
        } catch {
            let isLate = error.code == .deadlineExceeded
            let isAbandoned = error.code == .cancelled || isLate && time < configuration.time
            changed { $0.ended(of: account, isAbandoned ? .abandoned : .failed, at: .now()) }
            (isLate ? late : failed).increment()
            log.debug("The language model has not answered", metadata: Logger.facts(of: error))
            return .nothing
        }
    }

    private func ask(
        _ client: HTTPClient, _ prompt: GuestPrompt, _ time: Duration
    ) async throws(ApusError) -> GuestAnswer {
        var request = HTTPClient.Request("POST", configuration.endpoint)
        request.headers = [.init("Content-Type", "application/json"), .init("Accept", "application/json")]
        if let key { request.headers.append(.init("Authorization", "Bearer \(key)")) }
        request.body = Array(prompt.json(model: configuration.model, tokensMax: configuration.tokensMax).utf8)
        (request.timeout, request.connectTimeout) = (time, time / 2)
        request.answerByteCountMax = GuestConfiguration.answerByteCountMax
        let answer = try await client.send(request)
        guard (200..<300).contains(answer.head.status) else {
            throw ApusError(.passToServerFailed, "the model's server answered with the status \(answer.head.status)")
        }
        return try GuestAnswer(answer.body)
    }

    @discardableResult
    private func changed<Result>(_ change: (inout GuestStateMachine) -> Result) -> Result {
        let (result, count) = machine.withLock { machine in
            let result = change(&machine)
            return (result, machine.runningCount)
        }
        runningGauge.record(count)
        return result
    }
}

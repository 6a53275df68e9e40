import ApusClient
import ApusContract
import ApusCore
import ApusLocal
import ApusSessions
import ArgumentParser
import SwiftProtobuf

// Video calls (CALL-4 to CALL-13, docs/calls.md).

/// What has happened in a call, as `--json` has it.
private struct CallReport: Encodable {
    var call: String
    var event: String
    var code: Int32?
    var reason: String?

    init(_ notice: ClientSession.CallNotice) {
        call = notice.call
        switch notice.stage {
        case .ring: event = "ring"
        case .ringing: event = "ringing"
        case .accepted: event = "accepted"
        case .message: event = "message"
        case .ended(let error, let reason): (event, code, self.reason) = ("ended", error?.code.number ?? 0, reason)
        }
    }

    var line: String {
        guard let reason else { return "\(call): \(event)" }
        return "\(call): \(event), \(reason)" + (code == 0 ? "" : " (\(code ?? 0))")
    }
}

/// `apus call DEVICE`
struct CallCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "call", abstract: "Call a device as an app, and print what happens until the call ends.")
    @OptionGroup var options: PropertyOptions
    @Option(help: "Ring for this number of seconds, 5 to 120.") var timeout = 30
    @Option(help: "Hang up this number of seconds after the accept.") var hangUpAfter: Double?
    @Option(help: "Pass a JSON object to the device.") var extra = ""
    @OptionGroup var media: CallMediaOptions

    func run() async throws {
        let log = options.connection.log
        try await options.run {
            [output = options.output, timeout, hangUpAfter, extra, media] session, device throws(ApusError) in
            var calls = session.calls().makeAsyncIterator()
            var steps = CallMedia.Steps()
            let call = try await session.startCall(
                to: [.device(device)], timeout: .seconds(timeout), extra: extra)
            var side: CallMedia?
            while let notice = try await calls.nextNotice(), notice.call == call.id {
                steps.note(notice.stage)
                try output.show(notice)
                if case .ended = notice.stage { break }
                guard notice.stage == .accepted || notice.stage == .message else { continue }
                if media.isEmpty {
                    try await session.reportCallConnected(call.id)
                } else {
                    side = try CallMedia(media, session, call: call.id, steps: steps, log: log)
                }
                guard let hangUpAfter else { continue }
                try? await Task.sleep(for: .seconds(hangUpAfter))
                try await session.hangUpCall(call.id)
                break
            }
            try await output.show(side)
        }
    }
}

/// `apus answer DEVICE`
struct AnswerCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "answer", abstract: "Take the calls of a device, as the device, and print what happens in them.")
    @OptionGroup var options: PropertyOptions
    @Flag(help: "Reject calls.") var reject = false
    @Option(help: "Ring for this number of seconds before a call is accepted or rejected.") var ring = 0.0
    @Option(help: "End after this number of calls.") var count: Int?
    @OptionGroup var media: CallMediaOptions

    func run() async throws {
        let log = options.connection.log
        try await options.run(as: .device) {
            [output = options.output, reject, ring, count, media] session, _ throws(ApusError) in
            try await session.reportTwoWayVideo(!media.isEmpty)
            var calls = session.calls().makeAsyncIterator()
            var endCount = 0
            var side: CallMedia?
            while let notice = try await calls.nextNotice() {
                try output.show(notice)
                switch notice.stage {
                case .ring:
                    try? await Task.sleep(for: .seconds(ring))
                    // A call that has ended meanwhile says so with its next notice.
                    _ =
                        reject
                        ? try? await session.rejectCall(notice.call) : try? await session.acceptCall(notice.call)
                case .accepted where media.isEmpty: _ = try? await session.reportCallConnected(notice.call)
                case .accepted:
                    // One call at a time: the one before has ended, even if its notice has not come yet.
                    try await output.show(side)
                    side = try CallMedia(media, session, call: notice.call, log: log)
                case .ringing, .message: break
                case .ended:
                    endCount += 1
                    guard side?.call == notice.call else { break }
                    try await output.show(side)
                    side = nil
                }
                if let count, endCount >= count { break }
            }
            try await output.show(side)
        }
    }
}

/// `apus calls`
struct CallsCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "calls", abstract: "List the calls of an account or a device that have ended, the newest first.")
    @OptionGroup var options: OperatorOptions
    @Option(help: "The account.") var account = LocalCluster.account.rawValue
    @Option(help: "List those of this device.") var device = ""
    @Option(help: "List at most this many.") var limit: UInt32 = 50

    func run() async throws {
        let request = ClientListCallsRequest.with {
            ($0.account, $0.device, $0.pageSize) = (account, device, limit)
        }
        try await options.show(request) { answer in
            [["CALL", "FROM", "TO", "ACCEPTED BY", "BEGAN", "SECONDS", "END"]]
                + answer.calls.map { call in
                    [
                        call.call, call.caller.name, call.called.map(\.name).joined(separator: " "), call.winner.name,
                        TimeText.of(milliseconds: call.startedMs),
                        call.acceptedMs == 0 ? "-" : "\((call.endedMs - call.acceptedMs) / 1000)",
                        call.reason,
                    ]
                }
        }
    }
}

extension ClientCallParty {
    var name: String { !device.isEmpty ? device : account.isEmpty ? "-" : account }
}

extension OutputOptions {
    fileprivate func show(_ notice: ClientSession.CallNotice) throws(ApusError) {
        let report = CallReport(notice)
        try show(report, [report.line])
    }

    /// Ends the media of a call, and shows what there were.
    fileprivate func show(_ media: CallMedia?) async throws(ApusError) {
        guard let report = try await media?.end() else { return }
        try show(report, [report.line])
    }
}

extension ClientSession.Calls.Iterator {
    fileprivate mutating func nextNotice() async throws(ApusError) -> ClientSession.CallNotice? {
        do {
            return try await next()
        } catch {
            throw error as? ApusError ?? ApusError(.internalFailure, "\(error)")
        }
    }
}

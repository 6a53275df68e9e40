package import ApusCalls
package import ApusChannels
import ApusClientAPI
package import ApusCluster
import ApusContract
package import ApusCore
import ApusMedia
import ApusSessions
package import ApusStorage
import CoreMetrics
import Foundation
import Logging
package import NIOCore
import ServiceLifecycle
import SwiftProtobuf
import Synchronization

/// A message that a machine has taken, for what notifies its account.
package struct NewMessage: Sendable {
    /// The id of the message and of its call.
    package var id: String
    /// The account that reads it.
    package var account: AccountID
    /// The device whose machine has taken it; nil for the machine of the account.
    package var machine: DeviceID?
    /// The device that has left it; nil for an account.
    package var callerDevice: DeviceID?
    /// The account that has left it; empty for a device.
    package var callerAccount: String
}

/// Answering machines of devices and accounts (docs/answering-machine.md).
///
/// A call that nobody accepts asks its owner's node to record its caller. Messages are in records, so any node reads
/// them.
///
/// Concurrency model: any thread. A `Mutex` guards the table of recordings.
package final class AnsweringService: Service, AnsweringMachines, Sendable {
    private struct Recording {
        var recorder: MessageRecorder
        var report: @Sendable (MessageReport) -> Void
        var isRunning = false
    }

    let configuration: AnsweringConfiguration
    let view: ClusterView
    let records: AnsweringRecords
    let sessions: SessionRecords
    private let channels: ChannelService
    private let group: any EventLoopGroup
    private let limited: LogLimiter
    private let onMessage: @Sendable (NewMessage) async throws(ApusError) -> Void
    private let recordings = Mutex<[String: Recording]>([:])
    private let waiting = WorkQueue<MessageRecorder>(countMax: AnsweringService.waitingMax)

    private let stored = Counter(label: "apus_answering_messages_total", dimensions: [("result", "stored")])
    private let empty = Counter(label: "apus_answering_messages_total", dimensions: [("result", "empty")])
    private let failed = Counter(label: "apus_answering_messages_total", dimensions: [("result", "failed")])
    private let cut = Counter(label: "apus_answering_messages_cut_total")
    private let full = Counter(label: "apus_answering_refused_total")
    private let active = Gauge(label: "apus_answering_recordings")

    /// Recordings that wait for a task. One more is left out: its call asks again.
    private static let waitingMax = 1024
    private static let cleanInterval = Duration.seconds(60)

    /// - Parameter onMessage: called once a message can be read; again if the node dies meanwhile.
    package init(
        _ configuration: AnsweringConfiguration, _ view: ClusterView, records: any RecordStore,
        channels: ChannelService, group: any EventLoopGroup, limited: LogLimiter,
        onMessage: @escaping @Sendable (NewMessage) async throws(ApusError) -> Void
    ) {
        (self.configuration, self.view, self.channels, self.group) = (configuration, view, channels, group)
        self.onMessage = onMessage
        (self.records, sessions, self.limited) = (AnsweringRecords(records), SessionRecords(records), limited)
    }

    // MARK: - For calls

    package func machine(of parties: [CallParty]) async -> CallAnswering? {
        do throws(ApusError) {
            for party in parties {
                if let found = try await machine(of: party) { return found }
            }
        } catch {
            // The call is placed all the same.
            limited.log(.warning, "The answering machine of a call cannot be read", metadata: Logger.facts(of: error))
        }
        return nil
    }

    private func machine(of party: CallParty) async throws(ApusError) -> CallAnswering? {
        guard let machine = try await records.machine(party.name)?.body, machine.isEnabled else { return nil }
        let account = try await account(of: party)
        guard machine.isOf(account) else { return nil }
        if machine.account.isEmpty, !account.isEmpty {
            // An earlier release has set it. From now on it is this account's.
            try await records.change(party.name, of: account) { _ in }
        }
        guard try await !isFull(party, of: account) else {
            full.increment()
            return nil
        }
        return .with {
            $0.account = account
            ($0.party, $0.afterMs, $0.lengthMs, $0.keepMs) = (party, machine.afterMs, machine.lengthMs, machine.keepMs)
            ($0.greeting, $0.greetingPieces) = (machine.greeting, machine.greetingPieces)
        }
    }

    /// True if the machine has as many messages of the account as it may have, without that of this call. Those of an
    /// account to which the device belonged before do not count.
    private func isFull(_ party: CallParty, of account: String, except call: String = "") async throws(ApusError)
        -> Bool
    {
        let newest = try await records.page(of: party.name, after: "", limit: configuration.messagesMax + 1).messages
        let count = newest.count { $0.account == account && $0.call != call }
        if count >= configuration.messagesMax { return true }
        // The message of this call is counted already if its recorder goes on.
        if newest.contains(where: { $0.call == call }) { return false }
        return try await messageByteCount(of: account) == 0
    }

    /// The largest size of a new message; 0: the account has no room for one.
    func messageByteCount(of account: String) async throws(ApusError) -> UInt64 {
        let bytes = try await records.bytes(of: account)
        let room = configuration.shares.room(own: bytes.own, all: bytes.all)
        let largest = UInt64(configuration.messageByteCountMax)
        return room < min(largest, AnsweringConfiguration.messageByteCountMin) ? 0 : min(largest, room)
    }

    package func record(_ recording: CallRecording, report: @escaping @Sendable (MessageReport) -> Void) {
        let recorder = recordings.withLock { recordings -> MessageRecorder? in
            if let known = recordings[recording.call] {
                if recording.over { known.recorder.end() }
                return nil
            }
            guard recordings.count < Self.waitingMax else { return nil }
            // The call asks again.
            let account = recording.answering.account
            let share = max(1, configuration.recordingsMax / AnsweringConfiguration.accountPart)
            let used = recordings.values.count { $0.recorder.recording.answering.account == account }
            guard account.isEmpty || used < share else { return nil }
            let recorder = MessageRecorder(recording, self)
            if recording.over { recorder.end() }
            recordings[recording.call] = Recording(recorder: recorder, report: report)
            return recorder
        }
        if let recorder { waiting.add(recorder) }
    }

    /// Records messages, stores those that were abandoned, and removes those that have expired, until the node stops.
    package func run() async throws {
        await cancelWhenGracefulShutdown {
            await withDiscardingTaskGroup { group in
                group.addTask {
                    await self.waiting.run(atMost: self.configuration.recordingsMax) { await self.record($0) }
                }
                group.addTask { await self.clean() }
            }
        }
    }

    private func record(_ recorder: MessageRecorder) async {
        let call = recorder.recording.call
        let report = recordings.withLock { recordings in
            active.record(recordings.count)
            return recordings[call]?.report
        }
        guard let report else { return }
        let answering = recorder.recording.answering
        let greeting = await greeting(of: recorder.recording)
        do throws(ApusError) {
            var outcome = MessageRecorder.Outcome.empty
            // Others may have left messages since the machine has answered.
            if try await isFull(answering.party, of: answering.account, except: call) {
                full.increment()
                report(.full)
            } else {
                outcome = try await recorder.run(greeting) {
                    self.cut.increment()
                    report(.full)
                }
            }
            switch outcome {
            case .stored(let message):
                stored.increment()
                await notify(message)
                report(.stored)
            case .empty:
                empty.increment()
                report(.stored)
            case .full:
                full.increment()
                report(.full)
            case .left: break
            }
        } catch {
            failed.increment()
            limited.log(.error, "A message cannot be stored", metadata: Logger.facts(of: error))
        }
        greeting?.stop()
        recordings.withLock { recordings in
            recordings[call] = nil
            active.record(recordings.count)
        }
    }

    /// Notifies the account of a message. A message without a notice is listed all the same.
    private func notify(_ message: AnsweringMessage) async {
        guard let new = NewMessage(message) else { return }
        do throws(ApusError) {
            try await onMessage(new)
        } catch {
            limited.log(
                .warning, "An account was not notified of a message", metadata: Logger.facts(of: error))
        }
    }

    private func clean() async {
        // Nodes that start together look at different times.
        var pause = Self.cleanInterval * Double.random(in: 0.1...1)
        while (try? await Task.sleep(for: pause)) != nil {
            // A store that cannot be used now is tried again at the next turn.
            for message in (try? await records.storeAbandoned(at: view.clock.wallMilliseconds())) ?? [] {
                stored.increment()
                await notify(message)
            }
            try? await records.removeExpired(at: view.clock.wallMilliseconds())
            pause = Self.cleanInterval
        }
    }

    // MARK: - For recorders

    func noteFailure(_ error: ApusError) {
        limited.log(.warning, "A message is recorded again from its last frame", metadata: Logger.facts(of: error))
    }

    /// The account to which a party belongs; empty for a device that is bound to none.
    func account(of party: CallParty) async throws(ApusError) -> String {
        guard party.kind == .device else { return party.id }
        return try await sessions.record(of: DeviceID(unchecked: party.id))?.account?.rawValue ?? ""
    }

    /// Joins the channel of a call's caller.
    ///
    /// - Parameter onFirst: called on the event loop with the first frame.
    func join(
        _ call: String, after: FramePosition, onFirst: @escaping @Sendable (any EventLoop) -> Void
    ) async throws(ApusError) -> FrameTap {
        try await channels.tap(
            ChannelID(call: CallID(unchecked: call), side: .caller), after: after, on: group.next(),
            byteCountMax: AnsweringConfiguration.waitingByteCountMax, onFirst: onFirst)
    }

    /// The greeting of a machine; nil if it has none, or the call is over.
    private func greeting(of recording: CallRecording) async -> FramePlayer? {
        let answering = recording.answering
        guard answering.greetingPieces != 0, !recording.over else { return nil }
        do throws(ApusError) {
            let pieces = try await records.greetingPieces(
                answering.greeting, of: answering.party.name, count: answering.greetingPieces)
            let frames = try StoredFrames.frames(of: pieces)
            let account = AccountID(rawValue: try await account(of: answering.party))
            let channel = ChannelID(call: CallID(unchecked: recording.call), side: .winner)
            return FramePlayer(frames, to: channel, of: account, at: channels, on: group.next())
        } catch {
            limited.log(.warning, "A greeting cannot be played", metadata: Logger.facts(of: error))
            return nil
        }
    }
}

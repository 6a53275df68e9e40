import ApusClientAPI
import ApusCluster
import ApusCommands
import ApusContract
import ApusCore
import ApusCrypto
import ApusGrammar
import ApusSessions
import ApusWire
import CoreMetrics
import Foundation
import SwiftProtobuf

// The devices of a room: one of them listens, and the others are quieter meanwhile (docs/voice.md).

/// The other devices of a room have to be quieter, or may be as loud as before.
struct DialogDuck: Sendable {
    /// The device that is in a dialog.
    let device: DeviceID
    let speaker: DialogSpeaker
    /// Of the dialog: a device ignores an earlier one that comes late.
    let version: UInt64
    /// The time after which a device is as loud as before, although nothing has come. Nil: it may be so now.
    let forMs: Int64?
}

extension DialogService {
    /// What a room has for its answer beside the window. Then the device listens by itself.
    private static let roomReserve = Duration.milliseconds(350)
    /// A device whose presence is not known by then may hear the phrase.
    private static let presenceTimeout = Duration.milliseconds(100)
    private static let duckTimeout = Duration.seconds(1)
    private static let yieldTimeout = Duration.milliseconds(400)

    func registerRooms() {
        let options = EntityOptions<RoomActor>(
            make: { [configuration] _ in RoomActor(configuration) }, passivateAfter: .seconds(60))
        entities.register(.voiceRooms, options: options) { handlers in
            handlers.on(DialogRoomWake.self) { room, message throws(ApusError) in try await room.heard(message) }
            handlers.on(DialogRoomRevise.self) { room, message throws(ApusError) in try await room.revise(message) }
        }
    }

    // MARK: - Wakes

    /// A device has heard a wake phrase (VA-8). If others of its room have heard it, too, the loudest one listens.
    ///
    /// - Throws: 10007 if the account says too much, 21031 for a phrase or a language that is not valid; otherwise as
    ///   ``access(to:_:)``.
    func wake(
        _ request: ClientWakeDialogRequest, id: String, _ call: ClientCall
    ) async throws(ApusError) -> ClientWakeDialogResponse {
        guard let device = call.session.device else { throw ApusError(.notAllowed, "a device hears wake phrases") }
        guard request.phrase.utf8.count <= DialogConfiguration.phraseByteCountMax else {
            throw ApusError(.badParameter, "a phrase has at most \(DialogConfiguration.phraseByteCountMax) bytes")
        }
        let since = try await access(to: device, call.session).dataSince
        try takeTurn(of: call.session.account)
        let home = try await homes.home(of: call.session.account)
        let listening = try listening(id, request.language, home, call)
        let message = DialogRoomWake.with {
            ($0.device, $0.id, $0.sinceMs) = (device.rawValue, id, Int64(request.sinceMs))
            $0.signalToNoiseCb = Int32(request.signalToNoiseDb * 100)
            $0.energyCb = Int32(request.energyDb * 100)
        }
        let winner = await winner(message, home, device, call)
        guard winner == device.rawValue else {
            lostWakes.increment()
            let look = DialogLook.with { $0.dataSinceMs = since }
            let state = try await ref(device).ask(look, timeout: try call.timeLeft())
            return .with { ($0.winner, $0.dialog) = (winner, ClientDialog(state, device)) }
        }
        let state = try await listen(listening, device, since, call)
        // It may have yielded meanwhile, or a sentence has come already.
        let isListening =
            (state.phase == .listening && state.listening.id.isExactly(id))
            || state.turns.contains { $0.heard.isExactly(id) }
        (isListening ? wonWakes : lostWakes).increment()
        return .with {
            ($0.isListening, $0.dialog) = (isListening, ClientDialog(state, device))
            $0.winner = isListening ? device.rawValue : ""
        }
    }

    /// The device that listens: that of the message if the room cannot be asked.
    private func winner(
        _ message: DialogRoomWake, _ home: VoiceHome, _ device: DeviceID, _ call: ClientCall
    ) async -> String {
        var message = message
        let account = call.session.account
        let others = (try? await neighbours(of: device, home, account)) ?? []
        message.others = await connected(others, account).map(\.rawValue)
        let room = room(of: device, home, account)
        let timeout = configuration.arbitrationWindow + Self.roomReserve
        guard let decision = try? await room.ask(message, timeout: timeout) else {
            aloneWakes.increment()
            return device.rawValue
        }
        guard !decision.yielding.isEmpty else { return decision.winner }
        guard !decision.yieldsAlways else {
            _ = await askToYield(decision)
            return decision.winner
        }
        // A louder device than the winner. It listens only if the winner has yielded for certain.
        let isFree = await askToYield(decision)
        let revise = DialogRoomRevise.with { ($0.device, $0.id, $0.isFree) = (device.rawValue, message.id, isFree) }
        let revised = try? await room.ask(revise, timeout: Self.yieldTimeout)
        return isFree ? revised?.winner ?? device.rawValue : decision.yielding
    }

    private func askToYield(_ decision: DialogRoomDecision) async -> Bool {
        guard let winner = DeviceID(rawValue: decision.yielding) else { return false }
        let message = DialogYield.with { $0.listening = decision.yieldingListening }
        let isFree = (try? await ref(winner).ask(message, timeout: Self.yieldTimeout))?.isFree ?? false
        if isFree { yieldedWakes.increment() }
        return isFree
    }

    /// A device was tapped: another one of the room that listens to the wake phrase stops.
    func tapped(_ device: DeviceID, id: String, _ home: VoiceHome, _ account: AccountID) async {
        guard !home.neighbours(of: device).isEmpty else { return }
        let message = DialogRoomWake.with { ($0.device, $0.id, $0.isTap) = (device.rawValue, id, true) }
        let room = room(of: device, home, account)
        guard let decision = try? await room.ask(message, timeout: Self.yieldTimeout), !decision.yielding.isEmpty
        else { return }
        _ = await askToYield(decision)
    }

    private func room(of device: DeviceID, _ home: VoiceHome, _ account: AccountID) -> EntityRef<RoomActor> {
        let bytes = SHA256.hash(data: Array("\(account)/\(home.speaker(device)?.area ?? "")".utf8))
        let key = Hexadecimal.text(Array(bytes).prefix(16))
        return entities.ref(RoomActor.self, EntityAddress(kind: .voiceRooms, key: key))
    }

    /// The other devices that may hear the same person: those of the area, or those of the account without an area.
    private func neighbours(
        of device: DeviceID, _ home: VoiceHome, _ account: AccountID
    ) async throws(ApusError) -> [DeviceID] {
        guard (home.speaker(device)?.area ?? "").isEmpty else { return home.neighbours(of: device) }
        let all = try await devices.records(of: account, after: nil, limit: DialogConfiguration.neighboursMax * 2)
            .map(\.device)
        return Array(
            all.filter { $0 != device && (home.speaker($0)?.area ?? "").isEmpty }
                .prefix(DialogConfiguration.neighboursMax))
    }

    private func connected(_ others: [DeviceID], _ account: AccountID) async -> [DeviceID] {
        await withTaskGroup(of: DeviceID?.self) { group in
            for other in others {
                group.addTask { await self.isConnected(other, account) ? other : nil }
            }
            return await group.reduce(into: [DeviceID]()) { all, found in
                if let found { all.append(found) }
            }
        }
    }

    /// True if it is not known in time.
    private func isConnected(_ device: DeviceID, _ account: AccountID) async -> Bool {
        let inspect = SessionInspect.with { $0.account = account.rawValue }
        let address = EntityAddress(kind: .device, key: device.rawValue)
        do throws(ApusError) {
            let seen = try await entities.ref(IdentityActor.self, address).ask(inspect, timeout: Self.presenceTimeout)
            return Presence.Online(rawValue: seen.online) == .online
        } catch {
            return ![.illegalRelation, .targetUnknown, .deviceDisabled].contains(error.code)
        }
    }

    // MARK: - Ducking

    /// What a change of a dialog means for the other devices of the room; nil: nothing. A sentence that was typed makes
    /// no sound, so the others may continue.
    func duck(_ change: DialogChange, _ device: DeviceID) -> DialogDuck? {
        let isHeard = change.hasListening || !change.turn.heard.isEmpty
        guard isHeard, let phase = change.phases.last else { return nil }
        let time: Int64? =
            switch phase {
            case .listening: Int64(configuration.listeningTime.milliseconds)
            case .thinking: Int64(configuration.thinkingTime.milliseconds)
            case .speaking: DialogConfiguration.speakingTime(change.turn.plan.reply)
            default: nil
            }
        return DialogDuck(
            device: device, speaker: change.hasListening ? change.listening.speaker : change.turn.speaker,
            version: change.version, forMs: time.map { $0 + DialogConfiguration.duckReserve })
    }

    /// Sends the directives to the other devices of the room. One that is lost heals with the end in time of the last
    /// one that came.
    func perform(_ duck: DialogDuck) async {
        let authority = Authority(duck.speaker)
        guard let home = try? await homes.home(of: authority.account) else { return }
        let others = await connected(home.neighbours(of: duck.device), authority.account)
        var members: [JSONValue.Member] = [
            .init(name: "source", value: .string(duck.device.rawValue)),
            .init(name: "version", value: .string("\(duck.version)")),
        ]
        if let time = duck.forMs { members.append(.init(name: "forMs", value: .string("\(time)"))) }
        let payload = JSONValue.object(members)
        let name = duck.forMs == nil ? "Restore" : "Duck"
        await withTaskGroup(of: Void.self) { group in
            for other in others {
                group.addTask {
                    let id = RequestID("\(name)/\(duck.version)", of: other, authority.account.rawValue, step: 0)
                    let directive = ClientDialogDirective(
                        namespace: "Focus", name: name, messageID: Hexadecimal.text(id.bytes), dialogRequestID: "",
                        payload: payload.text)
                    guard let command = try? directive.command else { return }
                    _ = try? await self.commands.act(
                        command, id: Data(id.bytes), on: other, by: authority, timeout: Self.duckTimeout)
                }
            }
        }
    }
}

extension VoiceHome {
    /// The other devices in the area of a device to which people talk, at most ``DialogConfiguration/neighboursMax``.
    /// Devices without an area are in one.
    func neighbours(of device: DeviceID) -> [DeviceID] {
        guard let own = speaker(device) else { return [] }
        var found: [DeviceID] = []
        for entry in content.devices where entry.area == own.area && entry.device != device.rawValue {
            guard let kind = VoiceKind(rawValue: entry.kind), kind == .speaker || kind == .display,
                let other = DeviceID(rawValue: entry.device), !found.contains(other)
            else { continue }
            found.append(other)
        }
        return Array(found.prefix(DialogConfiguration.neighboursMax))
    }
}

import ApusWire
import Foundation
import SwiftProtobuf

// Protobuf messages between nodes, each with a value in every field. Compiled twice, as WireSample.swift.
extension WireSample {
    private static func message<M: Message & Equatable>(_ message: M) -> WireSample {
        WireSample(
            name: "message: \(M.protoMessageName)", encode: { try message.serializedBytes() },
            decodes: { try M(serializedBytes: $0) == message })
    }

    static var messages: [WireSample] {
        let groups: [[WireSample]] = [ownership, sessions, channels, relays, entities]
        return groups.flatMap { $0 }
    }

    private static var ownership: [WireSample] {
        [message(ClusterMapChanged.with { $0.revision = 43 })]
    }

    private static var place: SessionPlace {
        .with { ($0.node, $0.incarnation, $0.session) = ("node-1", 3, "s-1") }
    }

    private static var order: SessionOrder { .with { ($0.epoch, $0.sequence) = (4, 19) } }

    private static var sessions: [WireSample] {
        [
            message(
                SessionRegister.with {
                    ($0.place, $0.account, $0.access, $0.sinceMs) = (place, "acme", "app-1", 1_767_225_600_123)
                    ($0.asleep, $0.again, $0.instance, $0.order) = (true, true, 0xfeed_beef, order)
                }),
            message(SessionRegistered.with { ($0.superseded, $0.order) = (true, order) }),
            message(SessionUnregister.with { ($0.place, $0.resumable) = (place, true) }),
            message(SessionUnregistered()),
            message(SessionInspect.with { ($0.account, $0.subscribe, $0.place) = ("acme", true, place) }),
            message(SessionInspected.with { ($0.online, $0.time) = (2, 1_767_225_600) }),
            message(SessionForget.with { $0.place = place }), message(SessionForgotten()),
            message(SessionSleep.with { ($0.place, $0.asleep) = (place, true) }), message(SessionSlept()),
            message(
                SessionKick.with { ($0.session, $0.order, $0.code, $0.epoch) = ("s-1", order, 12_003, 4) }),
            message(
                SessionPresenceChanged.with {
                    ($0.device, $0.online, $0.time, $0.epoch) = ("front-door", 1, 1_767_225_600, 4)
                    $0.sessions = ["s-1", "s-2"]
                }),
        ]
    }

    private static var position: ChannelPosition { .with { ($0.epoch, $0.sequence) = (2, 1000) } }

    private static var channels: [WireSample] {
        [
            message(
                ChannelSubscribe.with {
                    ($0.device, $0.source, $0.epoch, $0.after, $0.account) = ("cam", 1, 4, position, "acme")
                }),
            message(ChannelSubscribed.with { ($0.stream, $0.term, $0.liveFrom) = (12, 4, position) }),
            message(ChannelUnsubscribe.with { $0.stream = 12 }),
            message(
                ChannelIngest.with {
                    ($0.device, $0.source, $0.epoch, $0.instance) = ("cam", 1, 2, 0xfeed_beef)
                    ($0.oldest, $0.stream, $0.resumes, $0.account, $0.unconfirmed) = (900, 13, true, "acme", true)
                }),
            message(
                ChannelIngesting.with { ($0.next, $0.protected, $0.term, $0.epoch) = (1001, true, 4, 2) }),
            message(ChannelEndIngest.with { $0.stream = 13 }),
            message(ChannelAcknowledged.with { ($0.stream, $0.epoch, $0.next) = (13, 2, 1001) }),
            message(ChannelResume.with { ($0.stream, $0.next) = (13, 1001) }),
            message(
                ChannelReplicate.with {
                    ($0.device, $0.source, $0.term, $0.epoch) = ("cam", 1, 4, 2)
                    ($0.instance, $0.stream, $0.liveFrom, $0.account) = (0xfeed_beef, 14, position, "acme")
                }),
            message(ChannelReplicating.with { $0.after = position }),
            message(ChannelReplicated.with { ($0.stream, $0.epoch, $0.next) = (14, 2, 1001) }),
            message(ChannelPublisherChanged.with { ($0.stream, $0.epoch, $0.instance) = (14, 3, 0xfeed) }),
            message(ChannelCopyRefused.with { ($0.stream, $0.term) = (14, 4) }),
            message(ChannelProcessed.with { $0.byteCount = 123_456_789 }),
            message(
                ChannelIngestEnded.with {
                    $0.stream = 13
                    $0.failure = .with { ($0.code, $0.message) = (10_009, "moved") }
                }),
        ]
    }

    private static var mirror: RelayWireMirror {
        .with {
            ($0.ticket, $0.username, $0.remainingMs) = (Data(repeating: 7, count: 16), "1767225600:acme", 599_000)
            $0.relayed = [Data([10, 0, 0, 1, 0xc0, 0])]
            $0.permissions = [Data([10, 0, 0, 9, 0, 0])]
            $0.channels = [.with { ($0.number, $0.peer) = (0x4000, Data([10, 0, 0, 9, 0x10, 0])) }]
        }
    }

    private static var relays: [WireSample] {
        [
            message(
                RelayWireMirrored.with { ($0.mirrors, $0.ended) = ([mirror], [Data(repeating: 8, count: 16)]) }),
            message(RelayWireMirroredTaken()),
            message(
                RelayWireClaim.with { ($0.ticket, $0.username) = (Data(repeating: 7, count: 16), "1767225600:acme") }),
            message(RelayWireClaimed.with { $0.mirror = mirror }),
            message(RelayWireMovedAway.with { $0.ticket = Data(repeating: 7, count: 16) }),
            message(RelayWireMovedAwayTaken()),
            message(
                RelayWireReport.with {
                    $0.endpoints = [.with { ($0.transport, $0.address) = (2, Data([10, 0, 0, 1, 0x14, 0xe5])) }]
                    ($0.domain, $0.draining, $0.whole, $0.advertised) = (
                        "relay.example", true, true, "relay.example:3478"
                    )
                    ($0.users, $0.counts) = (["acme"], [3])
                    ($0.addresses, $0.relays) = ([Data([10, 0, 0, 1, 0, 0])], [Data([10, 0, 0, 2, 0, 0])])
                }),
            message(RelayWireReportTaken()),
        ]
    }

    private static var entities: [WireSample] {
        [
            message(
                EntityState.with {
                    $0.content = Data([1, 2, 3])
                    $0.answered = [
                        .with { ($0.idHigh, $0.idLow, $0.reply) = (1, 2, Data([4])) },
                        .with {
                            ($0.idHigh, $0.idLow) = (3, 4)
                            $0.failure = .with { ($0.code, $0.message) = (21_031, "no") }
                        },
                    ]
                    $0.reminders = [
                        .with {
                            ($0.name, $0.idHigh, $0.idLow, $0.due, $0.payload) = (
                                "close", 5, 6, 1_767_225_600_123, Data([7])
                            )
                        }
                    ]
                }),
            message(
                EntityReminded.with { ($0.name, $0.due, $0.payload) = ("close", 1_767_225_600_123, Data([7])) }),
        ]
    }
}

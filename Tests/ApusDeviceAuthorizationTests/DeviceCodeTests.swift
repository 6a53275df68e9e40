import ApusCore
import ApusDeviceAuthorization
import SwiftProtobuf
import Testing

@Suite("Codes of devices that ask for a token (VA-3, RFC 8628)")
struct DeviceCodeTests {
    private static let lifetime: Int64 = 600_000

    private static func code(at now: Int64 = 0) -> AuthorizationStoredCode {
        .with { ($0.userCode, $0.device, $0.client, $0.expiresMs) = ("WDJBMJHT", "cam", "-/cam", now + lifetime) }
    }

    private static func approver(_ account: String) -> AuthorizationApprover { .with { $0.account = account } }

    @Test("A user code is read whatever its case, hyphen and spaces, and nothing else is one (RFC 8628 §6.1)")
    func userCodes() {
        for text in ["WDJB-MJHT", "wdjbmjht", " wdjb mjht ", "W-D-J-B-M-J-H-T"] {
            #expect(UserCode(text)?.letters == "WDJBMJHT", "\(text)")
        }
        let others = ["", "WDJB-MJH", "WDJB-MJHTT", "WDJB-MJHA", "WDJB-MJH1", "ẄDJB-MJHT"]
        for text in others + [String(repeating: "-", count: 99)] {
            #expect(UserCode(text) == nil, "\(text)")
        }
        #expect(UserCode("wdjbmjht")?.description == "WDJB-MJHT")
    }

    @Test("Random user codes use all letters, and are read again")
    func randomCodes() throws {
        var generator = SystemRandomNumberGenerator()
        var letters: Set<Character> = []
        var codes: Set<UserCode> = []
        for _ in 0..<1000 {
            let code = UserCode(using: &generator)
            letters.formUnion(code.letters)
            codes.insert(code)
            #expect(UserCode(code.description) == code)
        }
        #expect(letters.count == 20 && codes.count > 990)
        let device = DeviceCode(try #require(codes.first), using: &generator)
        #expect(DeviceCode(device.text)?.userCode == codes.first)
        for text in ["", ".", String(device.text.dropLast()), device.text + "0", "A" + device.text.dropFirst()] {
            #expect(DeviceCode(text) == nil, "\(text)")
        }
    }

    @Test("What a device hears is what the account has decided, once, until the code expires", arguments: 0..<500)
    func walk(seed: Int) {
        var generator = Numbers(state: UInt64(seed) &+ 1)
        var machine = DeviceCodeStateMachine(Self.code())
        // The model: who has decided what, and whether the token was issued.
        var (decided, isUsed, now) = ((account: String, isApproved: Bool)?.none, false, Int64(0))
        for _ in 0..<60 {
            now += Int64.random(in: 0...30_000, using: &generator)
            let isOver = now >= Self.lifetime
            switch Int.random(in: 0..<3, using: &generator) {
            case 0:
                let poll = machine.poll(at: now)
                let expected: DeviceCodeStateMachine.Poll =
                    if isUsed { .used } else if isOver { .expired } else if let decided {
                        decided.isApproved ? .approved(Self.approver(decided.account)) : .refused
                    } else { .pending }
                #expect(poll == expected, "seed \(seed) at \(now)")
                guard case .approved = poll else { continue }
                machine.use()
                isUsed = true
            default:
                let account = ["anna", "ben"].randomElement(using: &generator) ?? ""
                let isApproved = Bool.random(using: &generator)
                let mayDecide = !isOver && !isUsed && (decided == nil || decided?.account == account)
                do throws(ApusError) {
                    try machine.decide(isApproved: isApproved, by: Self.approver(account), at: now)
                    #expect(mayDecide, "seed \(seed) at \(now)")
                    decided = (account, isApproved)
                } catch {
                    // The same error for all reasons: a guess learns nothing.
                    #expect(!mayDecide && error.code == .targetUnknown, "seed \(seed) at \(now)")
                }
            }
        }
    }

    @Test("A device that asks too early asks less often from then on (RFC 8628 §3.5)")
    func pace() {
        let start = MonotonicTime.zero
        let pace = Pace()
        #expect(pace.poll(1, at: start))
        #expect(pace.poll(1, at: start + .seconds(5)), "in time")
        #expect(!pace.poll(1, at: start + .seconds(9)), "a second too early")
        #expect(!pace.poll(1, at: start + .seconds(18)), "ten seconds are asked for now")
        #expect(pace.poll(1, at: start + .seconds(33)), "and then fifteen")
        #expect(pace.poll(2, at: start))
        #expect(!pace.poll(3, at: start), "two are counted at most")
        let isForgotten = pace.poll(3, at: start + .seconds(601))
        #expect(isForgotten && pace.count == 1, "those of expired codes are forgotten")
    }
}

@Suite("Refresh tokens of devices (VA-4, RFC 6749 §6, RFC 9700 §4.14.2)")
struct GrantTests {
    private static let account = AccountID(unchecked: "anna")

    private static func machine() -> Grant {
        Grant(
            .with {
                ($0.device, $0.account, $0.grant, $0.generation, $0.expiresS) = ("cam", "anna", "g", 1, 1000)
            })
    }

    private static func refresh(
        _ machine: Grant, _ generation: UInt64, grant: String = "g", account: AccountID = account,
        at now: Int64
    ) -> GrantStateMachine.Refresh {
        machine.refresh(generation, grant, account, at: now)
    }

    @Test("A refresh token gives the next one, and a lost answer is repeated")
    func rotation() {
        let machine = Self.machine()
        #expect(Self.refresh(machine, 1, at: 10) == .renewed(generation: 2))
        #expect(Self.refresh(machine, 1, at: 20) == .renewed(generation: 2), "the answer was lost")
        #expect(Self.refresh(machine, 2, at: 30) == .renewed(generation: 3))
        #expect(machine.grant?.expiresS == 1030)
    }

    @Test("A copied refresh token ends the grant, for its owner too")
    func copied() {
        var machine = Self.machine()
        _ = Self.refresh(machine, 1, at: 10)
        _ = Self.refresh(machine, 2, at: 20)
        #expect(Self.refresh(machine, 1, at: 30) == .copied)
        #expect(Self.refresh(machine, 3, at: 40) == .refused)
        machine = Self.machine()
        _ = Self.refresh(machine, 1, at: 10)
        #expect(Self.refresh(machine, 1, at: 11 + GrantStateMachine.graceSeconds) == .copied, "long after its use")
    }

    @Test("Another grant, account or number, and an expired one, give nothing and change nothing")
    func refusals() {
        let machine = Self.machine()
        let before = machine.grant
        #expect(Self.refresh(machine, 1, grant: "h", at: 10) == .refused)
        #expect(Self.refresh(machine, 1, account: AccountID(unchecked: "ben"), at: 10) == .refused)
        #expect(Self.refresh(machine, 0, at: 10) == .refused)
        #expect(Self.refresh(machine, 2, at: 10) == .refused)
        #expect(Self.refresh(machine, 1, at: 1000) == .refused)
        #expect(machine.grant == before)
        let none = Grant(nil)
        #expect(Self.refresh(none, 1, at: 10) == .refused)
    }

    @Test("Whatever is asked in whatever order, at most two refresh tokens are valid at a time", arguments: 0..<300)
    func walk(seed: Int) {
        var generator = Numbers(state: UInt64(seed) &+ 1)
        let machine = Self.machine()
        var now: Int64 = 0
        for _ in 0..<40 {
            now += Int64.random(in: 0...400, using: &generator)
            guard let known = machine.grant else { break }
            let asked = UInt64.random(in: 0...known.generation + 1, using: &generator)
            switch Self.refresh(machine, asked, at: now) {
            case .renewed(let next):
                #expect(asked == known.generation || asked + 1 == known.generation, "seed \(seed)")
                #expect(next == max(known.generation, asked + 1) && machine.grant?.generation == next, "seed \(seed)")
            case .copied: #expect(asked < known.generation && machine.grant == nil, "seed \(seed)")
            case .refused:
                #expect(asked == 0 || asked > known.generation || now >= known.expiresS, "seed \(seed)")
                #expect(machine.grant == known)
            }
        }
    }
}

/// A pace and a grant that expectations can change.
private final class Pace {
    private var pace = PollPace(interval: .seconds(5), lifetime: .seconds(600), countMax: 2)

    var count: Int { pace.count }
    func poll(_ code: UInt64, at now: MonotonicTime) -> Bool { pace.poll(code, at: now) }
}

private final class Grant {
    private var machine: GrantStateMachine

    init(_ grant: AuthorizationStoredGrant?) { machine = GrantStateMachine(grant) }

    var grant: AuthorizationStoredGrant? { machine.grant }

    func refresh(
        _ generation: UInt64, _ grant: String, _ account: AccountID, at now: Int64
    ) -> GrantStateMachine.Refresh {
        machine.refresh(grant: grant, generation: generation, account: account, at: now, expires: now + 1000)
    }
}

/// Random numbers of a seed (SplitMix64).
private struct Numbers: RandomNumberGenerator {
    var state: UInt64

    mutating func next() -> UInt64 {
        state &+= 0x9e37_79b9_7f4a_7c15
        var z = state
        z = (z ^ (z >> 30)) &* 0xbf58_476d_1ce4_e5b9
        z = (z ^ (z >> 27)) &* 0x94d0_49bb_1331_11eb
        return z ^ (z >> 31)
    }
}

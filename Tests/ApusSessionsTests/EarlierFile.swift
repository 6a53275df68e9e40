import ApusCore
import ApusSessions
import Testing

/// What stands in `Fixtures/records-before-collections.sqlite`: a node of the release before collections ran with two
/// cameras and an app, three revocations were made, and the node was stopped.
enum EarlierFile {
    private static let account = AccountID(unchecked: "local")

    static func expect(_ records: SessionRecords) async throws {
        let devices = try await records.records(of: account, after: nil, limit: 10)
        #expect(
            devices
                == ["cam", "door"].map { name in
                    DeviceRecord(
                        device: DeviceID(unchecked: name), account: account,
                        boundAtUnixMilliseconds: 1_795_379_001_000, lastSeenUnixMilliseconds: 1_795_379_001_000,
                        epoch: 1)
                })
        #expect(
            try await records.identity("1/cam")
                == IdentityRecord(
                    identity: "1/cam", epoch: 1, sequence: 55_847_204_176_953, instance: 17_969_229_081_119_627_305,
                    superseded: [], expires: 1_795_465_401))
        #expect(try await records.identity("2/local/ann")?.sequence == 55_851_208_302_051)
        #expect(try await records.identity("1/door") != nil)
        let revoked = try #require(try await records.revocations(since: nil, wallSeconds: 1_795_379_001))
        #expect(
            Set(revoked.records) == [
                RevocationRecord(.token(8_544_106_591_765_445_504), expires: 1_829_939_007),
                RevocationRecord(.identity("ann", account, issuedBefore: 1_800_000_000), expires: 1_829_939_007),
                RevocationRecord(
                    .account(AccountID(unchecked: "other"), issuedBefore: 1_700_000_000), expires: 1_829_939_007),
            ])
    }
}

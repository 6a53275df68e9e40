/// The bounds of integrators and their users, with keys under `accounts.` (D13, docs/accounts.md).
package struct AccountConfiguration: Sendable {
    /// The users of one customer; one more is refused with 10007. Key `accounts.users_max`.
    package var usersMax = 1_000_000
    /// The longest lifetime of a token that a customer issues; a longer one is shortened to it. Key
    /// `accounts.token_lifetime_max`.
    package var tokenLifetimeMax: Duration = .seconds(30 * 86_400)
    /// The revocations by one customer within ``revocationTime``; one more is refused with 10007. All customers
    /// together take at most half of ``RevocationRecord/countMax``. Key `accounts.revocations_max`.
    package var revocationsMax = 10_000

    /// How long the revocations of customers are kept: for as long as a token may be valid, and for at least 30 days,
    /// as what was asked for with a token may wait for longer than the token is valid (docs/authority.md).
    package var revocationTime: Duration { max(tokenLifetimeMax, .seconds(30 * 86_400)) }

    package init() {}
}

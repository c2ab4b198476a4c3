package idempotency

import (
	"context"
	"go/ast"
	"go/parser"
	"go/token"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/pgtest"
)

// Every test of these files runs twice: on the server, and through PgBouncer in transaction pooling, where two statements
// of a client meet in one session only if they are in one transaction. Faults of the wire strike between the service and
// PgBouncer, faults of the server behind it.
var pooledFiles = []string{"request_test.go", "wait_test.go", "faults_test.go", "table_test.go", "expiry_test.go", "rows_test.go", "hostile_test.go",
	"lease_test.go", "lease_keys_test.go", "table_lease_test.go"}

type pooledTest struct {
	name string
	test func(*testing.T)
}

var pooledTests = []pooledTest{
	{"TestR1AMissingKeyIsRefused", TestR1AMissingKeyIsRefused},
	{"TestR2R3AnInvalidKeyNeverReachesTheHandler", TestR2R3AnInvalidKeyNeverReachesTheHandler},
	{"TestR4R5ARepeatGetsTheSameAnswerAndTheHandlerDoesNotRun", TestR4R5ARepeatGetsTheSameAnswerAndTheHandlerDoesNotRun},
	{"TestR5AnswersOfEveryShapeComeBackByteForByte", TestR5AnswersOfEveryShapeComeBackByteForByte},
	{"TestR6AKeyWithAnotherRequestIsRefusedAndChangesNothing", TestR6AKeyWithAnotherRequestIsRefusedAndChangesNothing},
	{"TestR7WhatAFingerprintCovers", TestR7WhatAFingerprintCovers},
	{"TestR8R9TheOrderOfNamesIsIrrelevantWhatDiffersIsNot", TestR8R9TheOrderOfNamesIsIrrelevantWhatDiffersIsNot},
	{"TestR10FieldsThatMayDiffer", TestR10FieldsThatMayDiffer},
	{"TestR11OfManyAtOnceOneRunsAndAllGetItsAnswer", TestR11OfManyAtOnceOneRunsAndAllGetItsAnswer},
	{"TestR11ARepeatWhileTheFirstRunsWaitsOrIsTold", TestR11ARepeatWhileTheFirstRunsWaitsOrIsTold},
	{"TestR11AWaitingRepeatRunsWhenTheFirstFails", TestR11AWaitingRepeatRunsWhenTheFirstFails},
	{"TestR11RepeatsThatWaitHoldNoConnection", TestR11RepeatsThatWaitHoldNoConnection},
	{"TestR13AnotherKeyIsAnotherOperation", TestR13AnotherKeyIsAnotherOperation},
	{"TestR14AKeyBelongsToOnePrincipalAndOneOperation", TestR14AKeyBelongsToOnePrincipalAndOneOperation},
	{"TestR14WiderScopesNeverShowAnAnswerToSomebodyElse", TestR14WiderScopesNeverShowAnAnswerToSomebodyElse},
	{"TestR16R17WhichMethodsAreGuarded", TestR16R17WhichMethodsAreGuarded},
	{"TestC10AnOptionalKeyRunsTheHandlerInATransactionToo", TestC10AnOptionalKeyRunsTheHandlerInATransactionToo},
	{"TestC9KeysOfOtherSourcesAndForms", TestC9KeysOfOtherSourcesAndForms},
	{"TestR29ALongRequestIsRefused", TestR29ALongRequestIsRefused},
	{"TestR12TheLoserOfARaceGetsTheWinnersAnswer", TestR12TheLoserOfARaceGetsTheWinnersAnswer},
	{"TestR20WhatFailsLeavesNothingAndTheKeyFree", TestR20WhatFailsLeavesNothingAndTheKeyFree},
	{"TestR22AnAnswerOf4xxIsKeptAndItsWritesAreNot", TestR22AnAnswerOf4xxIsKeptAndItsWritesAreNot},
	{"TestR19AnAnswerNeverLeavesBeforeItsCommit", TestR19AnAnswerNeverLeavesBeforeItsCommit},
	{"TestR27WithoutADatabaseNobodyIsLetThrough", TestR27WithoutADatabaseNobodyIsLetThrough},
	{"TestR18AClientThatGoesAwayChangesNothingOnceTheHandlerHasReturned", TestR18AClientThatGoesAwayChangesNothingOnceTheHandlerHasReturned},
	{"TestR30AnAnswerTooLongToKeepIsNeverMadeAgain", TestR30AnAnswerTooLongToKeepIsNeverMadeAgain},
	{"TestR18R42ARowThatCannotBeTrustedStopsTheRequest", TestR18R42ARowThatCannotBeTrustedStopsTheRequest},
	{"TestR18ASerializationFailureRunsTheHandlerAgain", TestR18ASerializationFailureRunsTheHandlerAgain},
	{"TestR20APanicOfAnyFunctionOfTheRouteKeepsNothing", TestR20APanicOfAnyFunctionOfTheRouteKeepsNothing},
	{"TestR18R20TheFaultTable", TestR18R20TheFaultTable},
	{"TestR18R21TheFaultTableOfProcesses", TestR18R21TheFaultTableOfProcesses},
	{"TestR23R24R26AnExpiredKeyIsANewRequestWhoeverCleansUp", TestR23R24R26AnExpiredKeyIsANewRequestWhoeverCleansUp},
	{"TestR23ATimeToLiveIsNotExtendedByReplays", TestR23ATimeToLiveIsNotExtendedByReplays},
	{"TestR23ManyRequestsOnAnExpiredKeyRunOnce", TestR23ManyRequestsOnAnExpiredKeyRunOnce},
	{"TestR25CleanersOnManyNodesRemoveWhatIsExpiredAndNothingElse", TestR25CleanersOnManyNodesRemoveWhatIsExpiredAndNothingElse},
	{"TestR25WhatIsExpiredCanBeKeptForAudits", TestR25WhatIsExpiredCanBeKeptForAudits},
	{"TestR25RunCleansUntilItIsTold", TestR25RunCleansUntilItIsTold},
	{"TestR15WhoseAccountWasRevokedGetsNoStoredAnswer", TestR15WhoseAccountWasRevokedGetsNoStoredAnswer},
	{"TestR28ALostAnswerToCommitIsFoundOut", TestR28ALostAnswerToCommitIsFoundOut},
	{"TestR28WhatCannotBeFoundOutIsSaidToBeUnknownAndTheRetryFindsOut", TestR28WhatCannotBeFoundOutIsSaidToBeUnknownAndTheRetryFindsOut},
	{"TestR37AnAnswerOutlivesTheProcessThatGaveIt", TestR37AnAnswerOutlivesTheProcessThatGaveIt},
	{"TestR38AReplayCanBeGivenMoreHeaders", TestR38AReplayCanBeGivenMoreHeaders},
	{"TestR39TheValidityOfAKeyIsShownOnlyWhereItIsAskedFor", TestR39TheValidityOfAKeyIsShownOnlyWhereItIsAskedFor},
	{"TestR17R41AGuardedDeleteRepliesWhatItRepliedFirst", TestR17R41AGuardedDeleteRepliesWhatItRepliedFirst},
	{"TestR43AUniqueRuleOfTheTablesDoesNotMeetARetry", TestR43AUniqueRuleOfTheTablesDoesNotMeetARetry},
	{"TestR44AReplayIsDecidedBeforeConditionsAre", TestR44AReplayIsDecidedBeforeConditionsAre},
	{"TestR48TheKeyForAnotherServiceIsTheSameInEveryTry", TestR48TheKeyForAnotherServiceIsTheSameInEveryTry},
	{"TestC2AReplayHasTheFirstStatusUnlessTheRouteSaysOtherwise", TestC2AReplayHasTheFirstStatusUnlessTheRouteSaysOtherwise},
	{"TestR5OnlyHeadersThatMeanTheSameLaterAreReplayed", TestR5OnlyHeadersThatMeanTheSameLaterAreReplayed},
	{"TestR18AReferenceThatIsNoTextDoesNotCostTheEffect", TestR18AReferenceThatIsNoTextDoesNotCostTheEffect},
	{"TestR7FunctionsOfARouteMayReadTheFormAndTheHandlerHasItsBody", TestR7FunctionsOfARouteMayReadTheFormAndTheHandlerHasItsBody},
	{"TestR10ARequestWithoutWhatAFingerprintIsMadeOfIsNotWorthAnotherTry", TestR10ARequestWithoutWhatAFingerprintIsMadeOfIsNotWorthAnotherTry},
	{"TestR14APrincipalThatIsNoTextIsNobody", TestR14APrincipalThatIsNoTextIsNobody},
	{"TestR45AClientWhoseTimeIsOverWhileItWaitsIsToldThatItRuns", TestR45AClientWhoseTimeIsOverWhileItWaitsIsToldThatItRuns},
	{"TestR40ARequestUnderALeaseIsAnsweredOnceAndReplayedWithoutAWrite", TestR40ARequestUnderALeaseIsAnsweredOnceAndReplayedWithoutAWrite},
	{"TestR40ARequestGoesOnBehindItsLastStep", TestR40ARequestGoesOnBehindItsLastStep},
	{"TestR40AKeyWhoseProcessEndedIsInUseUntilItsLeaseRunsOut", TestR40AKeyWhoseProcessEndedIsInUseUntilItsLeaseRunsOut},
	{"TestR6AMismatchIsSaidAlsoBehindALeaseThatRanOut", TestR6AMismatchIsSaidAlsoBehindALeaseThatRanOut},
	{"TestR11OfManyRequestsAtOnceUnderALeaseOneRuns", TestR11OfManyRequestsAtOnceUnderALeaseOneRuns},
	{"TestR11RequestsThatWaitForALeaseGetItsAnswer", TestR11RequestsThatWaitForALeaseGetItsAnswer},
	{"TestTrap30WhoIsThawedAfterItsLeaseWritesNothing", TestTrap30WhoIsThawedAfterItsLeaseWritesNothing},
	{"TestTrap30AHandlerHearsThatItsLeaseIsLost", TestTrap30AHandlerHearsThatItsLeaseIsLost},
	{"TestALeaseIsRenewedWhileItsHandlerRuns", TestALeaseIsRenewedWhileItsHandlerRuns},
	{"TestALeaseOutlastsAStepThatTakesLonger", TestALeaseOutlastsAStepThatTakesLonger},
	{"TestR6R12ARaceForAKeyIsDecidedByItsClaim", TestR6R12ARaceForAKeyIsDecidedByItsClaim},
	{"TestR20WhatIsNotStoredUnderALeaseLeavesTheKeyToTheNextRequest", TestR20WhatIsNotStoredUnderALeaseLeavesTheKeyToTheNextRequest},
	{"TestAClientThatGoesAwayUnderALeaseFindsItsAnswerLater", TestAClientThatGoesAwayUnderALeaseFindsItsAnswerLater},
	{"TestR23AnUnfinishedRequestWithStepsOutlivesItsTTLAndOneWithoutDoesNot", TestR23AnUnfinishedRequestWithStepsOutlivesItsTTLAndOneWithoutDoesNot},
	{"TestR24AnExpiredKeyUnderALeaseIsANewRequestWithNewSteps", TestR24AnExpiredKeyUnderALeaseIsANewRequestWithNewSteps},
	{"TestARouteThatChangesItsModeNeverRunsARequestTwice", TestARouteThatChangesItsModeNeverRunsARequestTwice},
	{"TestARequestWithoutAKeyRunsUnderNoLease", TestARequestWithoutAKeyRunsUnderNoLease},
	{"TestR40TheFaultTableOfLeases", TestR40TheFaultTableOfLeases},
	{"TestALostReplyIsLookedUpAndTheRequestGoesOn", TestALostReplyIsLookedUpAndTheRequestGoesOn},
	{"TestR40TheFaultTableOfProcessesUnderALease", TestR40TheFaultTableOfProcessesUnderALease},
}

// notPooled are tests of those files that are about one session.
var notPooled = map[string]string{
	"TestEveryStatementIsUnderstoodByPostgres": "it prepares statements",
	"TestDecisionsAboutLeases":                 "it asks no database",
}

const pooledName = "TestTheSuiteThroughATransactionPooler"

func TestTheSchemaIsMadeThroughATransactionPooler(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"exec", "simple_protocol", "cache_describe"} {
		db := throughBouncer(t, pgtest.New(t), mode)
		if err := holdfast.Migrate(t.Context(), db.Pool, holdfast.SchemaConfig{}); err != nil {
			t.Errorf("%s: %v", mode, err)
		}
	}
}

func TestTheSuiteThroughATransactionPooler(t *testing.T) {
	modes := []pgx.QueryExecMode{pgx.QueryExecModeSimpleProtocol, pgx.QueryExecModeCacheDescribe}
	if testing.Short() {
		modes = append(modes, pgx.QueryExecModeExec)
	} else {
		for _, c := range pooledTests {
			t.Run("exec/"+c.name, c.test)
		}
	}
	// How statements are sent is pgx's affair: one test of each kind shows that the other modes work too. Describe_exec
	// does not: it parses a statement in one session and may run another's in the next.
	for _, mode := range modes {
		mode := strings.ReplaceAll(mode.String(), " ", "_")
		for _, name := range []string{
			"TestR5AnswersOfEveryShapeComeBackByteForByte", "TestR11OfManyAtOnceOneRunsAndAllGetItsAnswer",
			"TestR22AnAnswerOf4xxIsKeptAndItsWritesAreNot", "TestR23ManyRequestsOnAnExpiredKeyRunOnce",
		} {
			i := slices.IndexFunc(pooledTests, func(c pooledTest) bool { return c.name == name })
			t.Run(mode+"/"+name, pooledTests[i].test)
		}
	}
}

// doorOf says by which door a test comes to its database: its name says so, as a subtest's name begins with its test's.
func doorOf(t *testing.T) (mode string, pooled bool) {
	rest, pooled := strings.CutPrefix(t.Name(), pooledName+"/")
	mode, _, _ = strings.Cut(rest, "/")
	return mode, pooled
}

// throughBouncer is a test's database as a client of PgBouncer sees it.
func throughBouncer(t *testing.T, db *pgtest.DB, mode string) *pgtest.DB {
	t.Helper()
	dsn, err := url.Parse(pgtest.Bouncer(t, db))
	if err != nil {
		t.Fatal("the pooler's address cannot be parsed")
	}
	query := dsn.Query()
	query.Set("default_query_exec_mode", mode)
	dsn.RawQuery = query.Encode()
	config, err := pgxpool.ParseConfig(dsn.String())
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = db.Config().MaxConns
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return &pgtest.DB{Pool: pool, DSN: dsn.String()}
}

func TestNoTestOfTheSuiteIsLeftOutOfThePooler(t *testing.T) {
	t.Parallel()
	for _, file := range pooledFiles {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range parsed.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Recv != nil || !strings.HasPrefix(f.Name.Name, "Test") || notPooled[f.Name.Name] != "" {
				continue
			}
			if !slices.ContainsFunc(pooledTests, func(c pooledTest) bool { return c.name == f.Name.Name }) {
				t.Errorf("%s of %s runs on the server only: add it to pooledTests", f.Name.Name, file)
			}
		}
	}
}
